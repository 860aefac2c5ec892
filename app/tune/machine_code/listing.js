// Source and machine code side by side, or two listings aligned. Only the rows in view are in the
// page, and every text goes in by textContent: what a source says is shown and never acts.

const ROW = 20;  // px, as in the style
const HEIGHT = 560;
const SPARE = 8;  // rows beyond the view
const short = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});
const whole = new Intl.NumberFormat("en");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function cell(text, width, className = "number") {
  const made = element("span", className, text);
  made.style.width = `${width}ch`;
  return made;
}

// A list of `count()` rows of equal height; `row(n)` makes the element of the n-th.
// `heads`: cells that name the columns.
function pane(label, count, row, heads) {
  const box = element("div", "pane");
  const head = box.appendChild(element("div", "head"));
  head.setAttribute("role", "presentation");
  head.append(...heads);
  const room = box.appendChild(element("div", "room"));
  box.tabIndex = 0;
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", label);
  let drawn = [-1, -1];
  function draw(again = false) {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const last = Math.min(count(), Math.ceil((box.scrollTop + box.clientHeight) / ROW) + SPARE);
    if (!again && first === drawn[0] && last === drawn[1]) return;
    drawn = [first, last];
    room.style.height = `${count() * ROW}px`;
    const rows = [];
    for (let n = first; n < last; n++) {
      const made = row(n);
      made.style.top = `${n * ROW}px`;
      made.setAttribute("role", "option");
      rows.push(made);
    }
    room.replaceChildren(...rows);
  }
  function show(n) {
    const top = n * ROW;
    if (top < box.scrollTop + ROW || top > box.scrollTop + box.clientHeight - 2 * ROW)
      box.scrollTop = Math.max(0, top - box.clientHeight / 3);
    draw(true);
  }
  function fit() {
    box.style.height = `${Math.min(HEIGHT, (count() + 1) * ROW + 18)}px`;
    draw(true);
  }
  box.addEventListener("scroll", () => draw());
  new ResizeObserver(() => draw(true)).observe(box);
  return {box, draw, show, fit};
}

function side(title, list) {
  const made = element("div", "side");
  made.append(element("p", "", title), list.box);
  return made;
}

function button(text, title, act) {
  const made = element("button", "", text);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", act);
  return made;
}

function linked(data) {
  const {listing, source, source_name: name} = data;
  const lines = source.replace(/\n$/, "").split("\n");
  const total = listing.text.length;
  const most = Math.max(1, ...listing.cycles);
  const sum = Math.max(1, listing.executed.reduce((a, b) => a + b, 0));
  const byLine = new Map();  // line → instructions
  const executedAt = new Array(lines.length + 1).fill(0);
  listing.line.forEach((line, i) => {
    if (!line) return;
    if (!byLine.has(line)) byLine.set(line, []);
    byLine.get(line).push(i);
    executedAt[line] = (executedAt[line] ?? 0) + listing.executed[i];
  });
  const loopsAt = new Map();  // first instruction → loops, outermost first
  for (const loop of listing.loops) {
    if (!loopsAt.has(loop.first)) loopsAt.set(loop.first, []);
    loopsAt.get(loop.first).push(loop);
  }
  const folded = new Set();
  let shown = [];  // rows of the listing: an instruction's index, or a loop
  let rowOf = new Map();
  let line = 0, instruction = -1, hits = [], hit = -1;

  function lay() {
    shown = [];
    for (let i = 0; i < total;) {
      let jump = -1;
      for (const loop of loopsAt.get(i) ?? []) {
        shown.push(loop);
        if (folded.has(loop)) {
          jump = loop.last + 1;
          break;
        }
      }
      if (jump >= 0) i = jump;
      else shown.push(i++);
    }
    rowOf = new Map(shown.map((entry, n) => [entry, n]));
  }

  function sourceRow(n) {
    const number = n + 1, has = byLine.has(number);
    const row = element("div", has ? "row" : "row none");
    if (has && number === line) row.classList.add("chosen");
    row.setAttribute("aria-selected", String(number === line));
    row.append(cell(String(number), 4));
    const share = (executedAt[number] ?? 0) / sum;
    row.append(cell(share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "", 7));
    row.append(element("span", "", lines[n]));
    if (has) row.addEventListener("click", () => chooseLine(number));
    return row;
  }

  function codeRow(n) {
    const entry = shown[n];
    if (typeof entry !== "number") {
      const row = element("div", "row loop"), size = entry.last - entry.first + 1;
      const sign = folded.has(entry) ? "▸" : "▾", pad = "  ".repeat(entry.depth);
      const times = whole.format(entry.iterations);
      row.append(element("span", "",
        `${pad}${sign} loop of ${size} instructions, ${times} iterations of all warps`));
      row.setAttribute("aria-expanded", String(!folded.has(entry)));
      row.addEventListener("click", () => fold(entry));
      return row;
    }
    const i = entry, row = element("div", "row");
    if (line && listing.line[i] === line) row.classList.add("linked");
    if (i === instruction) row.classList.add("chosen");
    if (hits.includes(i)) row.classList.add("hit");
    row.setAttribute("aria-selected", String(i === instruction));
    row.append(cell(listing.address[i].toString(16).padStart(5, "0"), 6));
    row.append(cell(short.format(listing.executed[i]), 7));
    const heat = cell("", 7, "heat");
    const bar = heat.appendChild(element("i"));
    bar.style.width = `${(100 * listing.cycles[i]) / most}%`;
    row.append(heat);
    row.append(cell(String(listing.live[i] || ""), 4));
    row.append(cell(listing.schedule[i], 15, ""));
    row.append(element("span", "", listing.text[i]));
    const [wavefronts, needed] = [listing.wavefronts[i], listing.ideal_wavefronts[i]];
    if (needed && wavefronts > needed)
      row.append(element("span", "warn", `${(wavefronts / needed).toFixed(1)}× wavefronts`));
    const [sectors, dense] = [listing.sectors[i], listing.ideal_sectors[i]];
    if (dense && sectors > dense)
      row.append(element("span", "warn", `${(sectors / dense).toFixed(1)}× sectors`));
    row.addEventListener("click", () => chooseInstruction(i));
    return row;
  }

  const left = pane(`Source, ${name}`, () => lines.length, sourceRow,
    [cell("line", 4), cell("of all", 7), element("span", "", "source")]);
  const right = pane("Machine code", () => shown.length, codeRow, [
    cell("addr", 6), cell("runs", 7), cell("cycles", 7), cell("live", 4),
    cell("schedule", 15, ""), element("span", "", "instruction")]);
  const detail = element("p", "detail");
  const found = element("span");
  const search = element("input");
  search.type = "search";
  search.placeholder = "Search instructions and source";
  search.setAttribute("aria-label", "Search the listing");

  function unfoldAt(i) {
    let changed = false;
    for (const loop of [...folded])
      if (loop.first <= i && i <= loop.last) changed = folded.delete(loop) || changed;
    if (changed) lay();
    right.fit();
  }

  function chooseLine(number) {
    line = number;
    instruction = byLine.get(number)[0];
    unfoldAt(instruction);
    right.show(rowOf.get(instruction));
    left.draw(true);
    describe();
  }

  function chooseInstruction(i) {
    instruction = i;
    line = listing.line[i];
    unfoldAt(i);
    right.show(rowOf.get(i));
    if (line) left.show(line - 1);
    left.draw(true);
    describe();
  }

  // Where the warps spend most cycles, or execute most where no time is simulated.
  function openHottest() {
    const heat = listing.cycles.some((c) => c > 0) ? listing.cycles : listing.executed;
    const at = (instructions) => instructions.reduce((sum, i) => sum + heat[i], 0);
    const hottest = [...byLine.values()].sort((a, b) => at(b) - at(a))[0];
    if (!hottest && heat.length) chooseInstruction(heat.indexOf(Math.max(...heat)));
    if (!hottest) return;
    chooseInstruction(hottest.reduce((most, i) => (heat[i] > heat[most] ? i : most)));
  }

  function describe() {
    if (instruction < 0) return;
    const i = instruction, own = byLine.get(line) ?? [i];
    const where = line ? `Line ${line}: ${own.length} instructions, `
      + `${whole.format(executedAt[line] ?? 0)} executed. ` : "";
    const from = listing.inlined[i] ? ` Written at ${listing.inlined[i]}.` : "";
    const cycles = listing.cycles[i]
      ? ` ${whole.format(listing.cycles[i])} cycles of warps, most: ${listing.reason[i]}.` : "";
    detail.textContent = `${where}${listing.text[i]} (${listing.pipe[i]}), executed `
      + `${whole.format(listing.executed[i])} times.${cycles}${from}`;
  }

  function fold(loop) {
    if (!folded.delete(loop)) folded.add(loop);
    lay();
    right.fit();
  }

  function foldAll() {
    if (folded.size) folded.clear();
    else for (const loop of listing.loops) folded.add(loop);
    lay();
    right.fit();
    if (listing.loops.length) right.show(rowOf.get(listing.loops[0]));
  }

  function look() {
    const wanted = search.value.trim().toLowerCase();
    hits = [];
    hit = -1;
    if (wanted)
      for (let i = 0; i < total; i++) {
        const text = listing.text[i].toLowerCase();
        const written = (lines[listing.line[i] - 1] ?? "").toLowerCase();
        if (text.includes(wanted) || written.includes(wanted)) hits.push(i);
      }
    if (hits.length) step(1);
    else right.draw(true);
    tell();
  }

  function step(by) {
    if (!hits.length) return;
    hit = (hit + by + hits.length) % hits.length;
    chooseInstruction(hits[hit]);
    tell();
  }

  function tell() {
    const none = search.value.trim() ? "nothing found" : "";
    found.textContent = hits.length ? `${hit + 1} of ${hits.length}` : none;
  }

  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
  });
  right.box.addEventListener("keydown", (event) => {
    const by = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (!by) return;
    event.preventDefault();
    let n = (rowOf.get(instruction) ?? -1) + by;
    while (n >= 0 && n < shown.length && typeof shown[n] !== "number") n += by;
    if (n >= 0 && n < shown.length) chooseInstruction(shown[n]);
  });
  left.box.addEventListener("keydown", (event) => {
    const by = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (!by) return;
    event.preventDefault();
    let n = line + by;
    while (n >= 1 && n <= lines.length && !byLine.has(n)) n += by;
    if (byLine.has(n)) {
      chooseLine(n);
      left.show(n - 1);
    }
  });

  const tools = element("div", "bar");
  tools.append(
    search, found,
    button("Previous", "Shift+Enter in the search", () => step(-1)),
    button("Next", "Enter in the search", () => step(1)),
    button("Fold loops", "Fold all loops, or unfold them", foldAll),
  );
  const panes = element("div", "panes");
  panes.append(
    side(name, left), side(`${whole.format(total)} instructions, ${data.entry}`, right));
  lay();
  const fit = () => (left.fit(), right.fit());
  return {parts: [tools, panes, detail], fit, open: openHottest};
}

function aligned(data) {
  const {pairs, first, second} = data;
  const kinds = pairs.map(([a, b, same]) => (a < 0 ? "new" : b < 0 ? "gone" : same ? "" : "linked"));
  const changes = [];
  kinds.forEach((kind, n) => {
    if (kind && kind !== kinds[n - 1]) changes.push(n);
  });
  let at = -1;
  const made = (listing, column, n) => {
    const row = element("div", `row none ${kinds[n]}`), i = pairs[n][column];
    if (i < 0) return row;
    row.append(cell(String(listing.line[i] || ""), 5), cell(short.format(listing.executed[i]), 7));
    row.append(element("span", "", listing.text[i]));
    return row;
  };
  const heads = () => [cell("line", 5), cell("runs", 7), element("span", "", "instruction")];
  const left = pane(first.name, () => pairs.length, (n) => made(first.listing, 0, n), heads());
  const right = pane(second.name, () => pairs.length, (n) => made(second.listing, 1, n), heads());
  for (const [one, other] of [[left, right], [right, left]])
    one.box.addEventListener("scroll", () => {
      if (other.box.scrollTop !== one.box.scrollTop) other.box.scrollTop = one.box.scrollTop;
    });
  const where = element("span", "", `${changes.length} places differ`);
  const step = (by) => {
    if (!changes.length) return;
    at = (at + by + changes.length) % changes.length;
    left.show(changes[at]);
    right.show(changes[at]);
    where.textContent = `${at + 1} of ${changes.length} places that differ`;
  };
  const tools = element("div", "bar");
  tools.append(
    where,
    button("Previous", "The place before", () => step(-1)),
    button("Next", "The next place", () => step(1)),
  );
  const panes = element("div", "panes");
  panes.style.gridTemplateColumns = "1fr 1fr";
  panes.append(side(first.name, left), side(second.name, right));
  return {parts: [tools, panes], fit: () => (left.fit(), right.fit())};
}

// A page that runs again mounts the same data: what was chosen and scrolled to stays.
const views = new Map();  // by key: {stamp, root}

export default function ({data, parentElement}) {
  const {key, stamp} = data;
  let view = views.get(key);
  if (view?.stamp !== stamp) {
    const root = element("div", "listing");
    const {parts, fit, open} = data.pairs ? aligned(data) : linked(data);
    root.append(...parts);
    view = {stamp, root, fit, open};
    views.set(key, view);
  }
  if (view.root.parentNode !== parentElement) {
    for (const old of parentElement.querySelectorAll(".listing")) old.remove();
    parentElement.append(view.root);
    view.fit();
    view.open?.();  // once: what a person chose since stays
    view.open = undefined;
  }
}
