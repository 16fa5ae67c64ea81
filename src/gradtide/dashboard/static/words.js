// MetricFigures as words, and small pieces of the page.
export const $ = (id) => document.getElementById(id);

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  return made;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${number(value)} ${units[at]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e-3) return `${number(value * 1e6)} µs`;
  if (value < 1) return `${number(value * 1e3)} ms`;
  return `${number(value)} s`;
}

// 12.5 s, 3 min 20 s, 1 h 5 min
export function lasting(value) {
  if (value < 120) return `${number(value, 4)} s`;
  const whole = Math.round(value), parts = [[Math.floor(whole / 3600), "h"], [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  return parts.filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

export function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

// A table whose cells are text, or [text, class]; the headings are there even when it is empty.
export function fill(table, headings, rows, empty) {
  const head = element("thead"), body = element("tbody"), line = element("tr");
  for (const [i, heading] of headings.entries()) {
    const cell = element("th", heading, rows.length && rows[0][i][1] === "words" ? "words" : "");
    cell.scope = "col";
    line.append(cell);
  }
  head.append(line);
  for (const row of rows) {
    const made = element("tr");
    row.forEach((cell, i) => {
      const place = Array.isArray(cell) ? element("td", cell[0], cell[1]) : element("td", cell);
      place.dataset.heading = headings[i]; // which a small screen shows beside it
      made.append(place);
    });
    body.append(made);
  }
  if (!rows.length) {
    const made = element("tr"), cell = element("td", empty, "words");
    cell.colSpan = headings.length;
    made.append(cell);
    body.append(made);
  }
  table.replaceChildren(head, body);
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
