function plotly(src) {
  window.attunePlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = src;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      delete window.attunePlotly;  // the next update tries again
      script.remove();
      reject(new Error("plotly.js did not load"));
    };
    document.head.append(script);
  });
  return window.attunePlotly;
}

// Under load Streamlit may take an element away and put it back: the chart is kept, and its zoom.
const charts = new Map();  // by key

function made(key) {
  const chart = document.createElement("div");
  chart.className = "attune-chart";
  chart.dataset.key = key;
  // The page's width also changes without the window's: its sidebar opens and closes.
  new ResizeObserver(() => {
    if (chart.data && chart.offsetWidth) window.Plotly.Plots.resize(chart);
  }).observe(chart);
  chart.addEventListener("fullscreenchange", () => size(chart));
  if (!charts.size) watchTheme();
  charts.set(key, chart);
  return chart;
}

const app = () => document.querySelector("[data-testid=stApp]");

// The page changes between light and dark at once, and its script, which makes the figures, may take
// seconds: until then a figure takes the colours that stand for its own in the other theme.
function themed({figure, isDark, themes: [light, dark]}) {
  const rgb = getComputedStyle(app()).backgroundColor.match(/\d+/g) ?? [];
  const isNowDark = rgb.slice(0, 3).reduce((sum, part) => sum + Number(part), 0) < 382;
  if (isNowDark === isDark) return figure;
  const [from, to] = isNowDark ? [light, dark] : [dark, light];
  return figure.replace(/#[0-9a-f]{6}/g, (color) => to[from.indexOf(color)] ?? color);
}

function watchTheme() {
  window.attuneTheme?.disconnect();
  window.attuneTheme = new MutationObserver(() => charts.forEach((chart) => chart.show()));
  window.attuneTheme.observe(app(), {attributes: true});
}

function size(chart) {
  const isFull = document.fullscreenElement === chart;
  chart.style.height = isFull ? "100vh" : `${chart.height}px`;
  const page = app();
  chart.style.background = isFull && page ? getComputedStyle(page).backgroundColor : "";
}

const FULL_SCREEN = {
  name: "full screen",
  title: "Full screen",
  icon: {
    width: 24,
    height: 24,
    path: "M4 4h6v2H6v4H4zM14 4h6v6h-2V6h-4zM4 14h2v4h4v2H4zM18 14h2v6h-6v-2h4z",
  },
  click: (chart) =>
    document.fullscreenElement ? document.exitFullscreen() : chart.requestFullscreen(),
};

// Named one by one: among the others is one that would send the data away.
const BUTTONS = [
  "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage", FULL_SCREEN,
];

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function draw(chart, src, tools) {
  if (chart.waits) return;  // what is wanted by then will be drawn
  chart.waits = true;
  try {
    while (chart.drawn !== chart.wanted) {
      await painted();
      const Plotly = await plotly(src);
      while (chart._dragging) await pause(100);  // an update would take away the box being drawn
      const {data, layout} = JSON.parse(chart.wanted);
      delete layout.height;  // the element's own
      layout.font.family = getComputedStyle(chart).fontFamily;
      const bar = tools ? {modeBarButtons: [BUTTONS]} : {displayModeBar: false};
      if (!chart.data) chart.textContent = "";  // what a failure has said
      chart.drawn = chart.wanted;
      await Plotly.react(chart, data, layout, {displaylogo: false, ...bar});
      if (!chart.listens) listen(chart);
    }
  } catch (error) {
    window.Plotly?.purge(chart);  // a half of a chart could not be brought up to date
    chart.listens = false;
    chart.textContent = `The chart cannot be drawn: ${error.message}. Reload the page.`;
  } finally {
    chart.waits = false;
  }
}

function listen(chart) {
  chart.listens = true;
  chart.on("plotly_click", ({points}) => {
    const point = points.find((p) => typeof p.customdata === "string");
    if (point) chart.pick(point.customdata);
  });
}

export default function ({data, parentElement, setStateValue}) {
  const {height, src, key, tools} = data;
  const chart = charts.get(key) ?? made(key);
  if (chart.parentNode !== parentElement) parentElement.append(chart);
  chart.pick = (point) => setStateValue("picked", point);
  chart.height = height;
  size(chart);
  chart.show = () => {
    chart.wanted = themed(data);
    draw(chart, src, tools);
  };
  chart.show();
}
