// Numbers as people read them.

export const SOURCES = [
  ["device", "device"], ["host", "host memory"], ["disk", "disk"], ["shared", "shared"], ["in_flight", "in flight"], ["computed", "computed"],
];

export const share = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0.9995 || value < 0.0995 ? 0 : 1)}%`);

export function count(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${Math.round(value / 1e3)} k`;
  return `${value}`.replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export const plural = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

// The ids of sessions begin with the time: those of one hour differ at their ends.
export const shortName = (name) => (name.length > 24 ? `…${name.slice(-8)}` : name);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 90) return `${value.toFixed(1)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function ago(at) {
  if (!at) return "–";
  const past = Date.now() / 1000 - at;
  return past < 2 ? "now" : `${seconds(Math.round(past)).replace(".0", "")} ago`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
