// Unpacks the library and the charts, draws them in the reader's colours, and lets keys and legends move and hide what they show.
const INKS = {
  "#1f2933": "#e4e7eb", "#697586": "#9aa5b1", "#e6e9ee": "#323f4b", "#ffffff": "#12181f", "#334e68": "#9fb3c8",
  "#b42318": "#f97066", "#067647": "#32d583", "#5b6570": "#9aa5b1", "#9aa1a9": "#6b7683",
}

async function unpacked(name) {
  const bytes = Uint8Array.from(atob(document.getElementById(name).textContent), (c) => c.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text()
}

function run(code) {
  const script = document.createElement("script")
  script.textContent = code
  document.head.append(script)
}

function move(view, key) {
  if (key === "0") return view.reset()
  const range = view.model.x_range
  const size = range.end - range.start
  const [start, end] = {
    ArrowLeft: [range.start - size / 10, range.end - size / 10],
    ArrowRight: [range.start + size / 10, range.end + size / 10],
    "+": [range.start + size / 8, range.end - size / 8],
    "-": [range.start - size / 6, range.end + size / 6],
  }[key]
  const [low, high] = range.bounds || [-Infinity, Infinity]
  range.setv({ start: Math.max(low, start), end: Math.min(high, end) })
}

function listen() {
  for (const button of document.querySelectorAll(".legend button"))
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true"
      for (const plot of Bokeh.documents[0].roots())
        for (const shapes of plot.renderers)
          if (shapes.name === button.dataset.shapes) shapes.visible = shown
      button.setAttribute("aria-pressed", shown)
    })
  for (const chart of document.querySelectorAll(".chart"))
    chart.addEventListener("keydown", (event) => {
      const view = Bokeh.index.roots.find((each) => chart.contains(each.el))
      if (!["ArrowLeft", "ArrowRight", "+", "-", "0"].includes(event.key) || view.model.x_range.type !== "Range1d") return
      event.preventDefault()
      move(view, event.key)
    })
}

async function draw() {
  const dark = matchMedia("(prefers-color-scheme: dark)")
  dark.addEventListener("change", () => location.reload())
  const [library, data] = await Promise.all(["bokeh", "data"].map(unpacked))
  run(library)
  listen()
  const charts = JSON.parse(data, (_, value) => (dark.matches && INKS[value]) || value)
  await Bokeh.embed.embed_items(charts.docs, charts.items)
}

draw().catch((error) => {
  const note = document.createElement("p")
  note.textContent = `The charts need a browser of 2023 or later (${error}); the tables do not.`
  document.querySelector("main").prepend(note)
})
