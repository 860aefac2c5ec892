// Marks one line of the source that stands in the page, and brings it into view once.
const EVERY_MS = 100;
const MAX_TRIES = 300;

function lineNumber(code, line) {
  const numbers = document.querySelectorAll(
    `.st-key-${code} .react-syntax-highlighter-line-number`);
  return numbers[line - 1];
}

function place(stripe, number, pre) {
  const {top, height} = number.getBoundingClientRect();
  stripe.style.height = `${height}px`;
  stripe.style.top = `${top - pre.getBoundingClientRect().top + pre.scrollTop}px`;
  stripe.style.width = `${pre.scrollWidth}px`;
}

// Returns what watches the lines, whose height changes as the font arrives.
function mark(number, {line, request}) {
  const pre = number.closest("pre");
  const scroller = number.closest("[data-testid=stCode]");
  const stripe = document.createElement("div");
  stripe.className = "attune-source-line";
  stripe.dataset.line = line;
  pre.style.position = "relative";
  pre.querySelector(".attune-source-line")?.remove();
  pre.append(stripe);
  place(stripe, number, pre);
  const watching = new ResizeObserver(() => place(stripe, number, pre));
  watching.observe(number.closest("code") ?? pre);
  if (window.attuneSourceLine === request) return watching;  // a person may have scrolled since
  window.attuneSourceLine = request;
  scroller.scrollIntoView({block: "center"});
  stripe.scrollIntoView({block: "center"});
  scroller.focus({preventScroll: true});
  return watching;
}

export default function ({data}) {
  let tries = 0;
  let watching = null;
  const timer = setInterval(() => {  // the source comes after this component, on a busy machine
    const number = lineNumber(data.code, data.line);
    if (number) watching = mark(number, data);
    if (number || ++tries === MAX_TRIES) clearInterval(timer);
  }, EVERY_MS);
  return () => {
    clearInterval(timer);
    watching?.disconnect();
  };
}
