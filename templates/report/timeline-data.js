// The page's data: facts as JSON, spans as gzip of columns (labctl/report/timeline_data.py).
// Times are nanoseconds from the window's start.
const facts = JSON.parse(document.getElementById("facts").textContent);

async function unpack() {
  const letters = atob(document.getElementById("spans").textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const columns = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = 0;
  // Numbers whose lowest bytes come first, all of them, then all second ones, and so on.
  function numbers(count, width) {
    const values = new Float64Array(count);
    for (let plane = 0, weight = 1; plane < width; plane++, weight *= 256) {
      for (let i = 0; i < count; i++) values[i] += columns[at + i] * weight;
      at += count;
    }
    return values;
  }
  return facts.lanes.map((lane) => {
    const before = numbers(lane.count, 6);
    const end = numbers(lane.count, 6);
    const detail = numbers(lane.count, 3);
    const category = columns.subarray(at, at + lane.count);
    at += lane.count;
    const start = before;
    for (let i = 0, last = 0; i < lane.count; i++) {
      start[i] = last + before[i];
      last = end[i] = start[i] + end[i];
    }
    return { ...lane, start, end, detail, category };
  });
}

// The first span of a lane that ends after `moment`; the lane's length without one.
function firstAfter(lane, moment) {
  let low = 0;
  let high = lane.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.end[middle] > moment) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A length of time with three digits: "1.20 ms".
function length(ns) {
  for (const [unit, symbol] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= 0.9995 * unit) {
      const value = ns / unit;
      return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${symbol}`;
    }
  }
  return `${Math.round(ns)} ns`;
}

// A moment of the window in milliseconds, as exact as `step` (nanoseconds) asks for.
function moment(ns, step = 1e3) {
  const digits = Math.min(6, Math.max(0, Math.ceil(6 - Math.log10(step))));
  return (ns / 1e6).toFixed(digits);
}

function percent(part, whole) {
  return `${Math.round((100 * part) / (whole || 1))} %`;
}
