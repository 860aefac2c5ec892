// Marks one line of the source that stands in the page, and brings it into view once.
const EVERY_MS = 100;
const MOST_TRIES = 300;

function lineNumber(code, line) {
  const numbers = document.querySelectorAll(
    `.st-key-${code} .react-syntax-highlighter-line-number`);
  return numbers[line - 1];
}

function mark(number, {line, request}) {
  const pre = number.closest("pre");
  const scroller = number.closest("[data-testid=stCode]");
  const {top, height} = number.getBoundingClientRect();
  const stripe = document.createElement("div");
  stripe.className = "attune-source-line";
  stripe.dataset.line = line;
  stripe.style.height = `${height}px`;
  stripe.style.top = `${top - pre.getBoundingClientRect().top + pre.scrollTop}px`;
  stripe.style.width = `${pre.scrollWidth}px`;
  pre.style.position = "relative";
  pre.querySelector(".attune-source-line")?.remove();
  pre.append(stripe);
  if (window.attuneSourceLine === request) return;  // a person may have scrolled away since
  window.attuneSourceLine = request;
  scroller.scrollIntoView({block: "center"});
  stripe.scrollIntoView({block: "center"});
  scroller.focus({preventScroll: true});
}

export default function ({data}) {
  let tries = 0;
  const timer = setInterval(() => {  // the source comes after this component, on a busy machine
    const number = lineNumber(data.code, data.line);
    if (number) mark(number, data);
    if (number || ++tries === MOST_TRIES) clearInterval(timer);
  }, EVERY_MS);
  return () => clearInterval(timer);
}
