// The visible texts of the page whose contrast with what is behind them is too low for WCAG 2.2 AA,
// as lines "ratio  text  colour on colour". Disabled controls are exempt there, and here.
(least) => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const parsed = new Map();
  function rgba(css) {  // whatever notation the browser computed, as red, green, blue, alpha
    if (!parsed.has(css)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = "#000";
      canvas.fillStyle = css;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      parsed.set(css, [r, g, b, a / 255]);
    }
    return parsed.get(css);
  }
  const over = ([r, g, b, a], under) =>
    [r, g, b].map((value, i) => value * a + under[i] * (1 - a));
  function luminance(color) {
    const [r, g, b] = color.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function contrast(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }
  function behind(element, {left, right, top, bottom}) {  // colour of what lies under the text
    const [x, y] = [(left + right) / 2, (top + bottom) / 2];
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const box = e.getBoundingClientRect();  // a text may stand beside its own parent
      const isUnder = e === document.body
        || (box.left <= x && x <= box.right && box.top <= y && y <= box.bottom);
      if (isUnder) layers.push(rgba(getComputedStyle(e).backgroundColor));
    }
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  }
  function opacity(element) {
    let product = 1;
    for (let e = element; e; e = e.parentElement) product *= getComputedStyle(e).opacity;
    return product;
  }
  const found = new Set();
  let texts = 0;
  function check(element, css, text, box = element.getBoundingClientRect()) {
    texts++;
    const under = behind(element, box);
    const [r, g, b, a] = rgba(css);
    const ratio = contrast(over([r, g, b, a * opacity(element)], under), under);
    if (ratio < least) {
      found.add(`${ratio.toFixed(2)}  ${text.trim().slice(0, 60)}  ${css} on ${under.map(Math.round)}`);
    }
  }
  const isSeen = (e) => e.checkVisibility({opacityProperty: true, visibilityProperty: true})
    && e.getClientRects().length && e.getBoundingClientRect().width > 1;
  const isExempt = (e) => e.closest(":disabled, [aria-disabled=true], .modebar, .hoverlayer")
    || e.closest("label")?.querySelector(":disabled");
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.data.trim() || element.matches("script, style, noscript, title")) continue;
    if (!isSeen(element) || isExempt(element)) continue;
    const style = getComputedStyle(element);
    const range = document.createRange();
    range.selectNodeContents(node);
    const css = element.closest("svg") ? style.fill : style.color;
    check(element, css, node.data, range.getBoundingClientRect());
  }
  for (const input of document.querySelectorAll("input, textarea")) {
    if (!isSeen(input) || isExempt(input) || input.type === "range") continue;
    if (input.value) check(input, getComputedStyle(input).color, input.value);
    else if (input.placeholder) {
      check(input, getComputedStyle(input, "::placeholder").color, input.placeholder);
    }
  }
  // Tables are painted: their colours are properties of the element around the canvas.
  for (const table of document.querySelectorAll(".stDataFrameGlideDataEditor")) {
    const style = getComputedStyle(table);
    const of = (name) => style.getPropertyValue(name);
    for (const [text, paper] of [
      ["--gdg-text-dark", "--gdg-bg-cell"], ["--gdg-text-header", "--gdg-bg-header"],
    ]) {
      if (!of(text)) continue;
      const under = over(rgba(of(paper)), behind(table, table.getBoundingClientRect()));
      const ratio = contrast(over(rgba(of(text)), under), under);
      texts++;
      if (ratio < least) found.add(`${ratio.toFixed(2)}  a table's ${text} on ${of(paper)}`);
    }
  }
  return {texts, found: [...found]};
}
