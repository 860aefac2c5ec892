// Marks one line of the source that stands in the page, and brings it into view once.
export default function ({data}) {
  const {line, request, code} = data;
  const scroller = document.querySelector(`.st-key-${code} [data-testid=stCode]`);
  const pre = scroller?.querySelector("pre");
  const number = pre?.querySelectorAll(".react-syntax-highlighter-line-number")[line - 1];
  if (!number) return;
  pre.querySelector(".attune-source-line")?.remove();
  const mark = document.createElement("div");
  mark.className = "attune-source-line";
  mark.dataset.line = line;
  const place = () => number.getBoundingClientRect();
  pre.style.position = "relative";
  mark.style.height = `${place().height}px`;
  mark.style.top = `${place().top - pre.getBoundingClientRect().top + pre.scrollTop}px`;
  mark.style.width = `${pre.scrollWidth}px`;
  pre.append(mark);
  if (window.attuneSourceLine === request) return;  // a person may have scrolled away since
  window.attuneSourceLine = request;
  scroller.scrollIntoView({block: "center"});
  mark.scrollIntoView({block: "center"});
  scroller.focus({preventScroll: true});
}
