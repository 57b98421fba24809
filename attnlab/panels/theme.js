// Colours. One meaning each, in every panel: query, key, value, error or counterexample; the reference is drawn in the
// text colour (ink). Okabe and Ito's palette; where small text (4.5 to 1) or a mark (3 to 1) needs more contrast the same
// hue is darkened (light page) or lightened (dark page). `edge` bounds what can be set, `line` only divides.
import { h } from "./dom.js";

export const themes = {
  light: {
    ink: "#1b1b1f",
    muted: "#5c5c66",
    line: "#c9c9d0",
    edge: "#8e8e98",
    faint: "#ececf0",
    paper: "#ffffff",
    query: "#0072b2",
    key: "#c08400",
    value: "#009e73",
    error: "#d55e00",
    queryText: "#0067a1",
    keyText: "#8f6100",
    valueText: "#00785a",
    errorText: "#b84f00",
  },
  dark: {
    ink: "#e9e9ee",
    muted: "#a3a3ad",
    line: "#4b4b55",
    edge: "#6a6a75",
    faint: "#2a2a31",
    paper: "#111114",
    query: "#4aa8e0",
    key: "#e69f00",
    value: "#1fbf92",
    error: "#f0782e",
    queryText: "#66b8ea",
    keyText: "#eaa921",
    valueText: "#2dcb9e",
    errorText: "#ff8f4d",
  },
};

// cividis in ten stops; even for readers who see few colours, and in print. For numbers of both signs blue and orange,
// equally light at equal distance from zero, which is the lightest.
const CIVIDIS = ["00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838"];
const SIGNED = ["004e81", "0376be", "649dde", "b0c6e8", "f1f1f1", "e4bca7", "cf8a62", "b3581e", "803501"];

const gradient = (stops) => `linear-gradient(90deg, ${stops.map((stop) => "#" + stop).join(", ")})`;
export const cividisGradient = gradient(CIVIDIS);
export const signedGradient = gradient(SIGNED);

// So many colours as the little-endian words of an ImageData.
function ramp(stops, length) {
  return Uint32Array.from({ length }, (_, level) => {
    const place = (level / (length - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const channel = (i) => {
      const [a, b] = [stops[low], stops[low + 1]].map((stop) => parseInt(stop.slice(2 * i, 2 * i + 2), 16));
      return Math.round(a + (b - a) * (place - low));
    };
    return ((255 << 24) | (channel(2) << 16) | (channel(1) << 8) | channel(0)) >>> 0;
  });
}

export const cividis = ramp(CIVIDIS, 256);
export const signed = ramp(SIGNED, 511); // the middle one is zero

// Whether the page behind the element is dark: the backgrounds on the way up, each under the last, until little shows
// through; else the reader's preference. A browser has many ways to write a colour, so a pixel is painted and read.
export function isDark(element) {
  const pen = h("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  pen.globalCompositeOperation = "destination-over";
  for (let node = element; node; node = node.parentNode ?? node.host) {
    if (!(node instanceof Element)) continue;
    pen.fillStyle = "transparent"; // what stays where the canvas cannot read the colour
    pen.fillStyle = getComputedStyle(node).backgroundColor;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    if (alpha > 127) return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
  }
  return (
    getComputedStyle(document.documentElement).colorScheme.includes("dark") &&
    matchMedia("(prefers-color-scheme: dark)").matches
  );
}

// Call back when the page may have changed between light and dark; returns what stops it.
export function watchTheme(callback) {
  const media = matchMedia("(prefers-color-scheme: dark)"),
    observer = new MutationObserver(callback);
  media.addEventListener("change", callback);
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, {
      attributes: true,
      attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name"],
    });
  }
  // JupyterLab sets its attributes before the theme's style sheet has arrived
  const late = (event) => event.target instanceof HTMLLinkElement && callback();
  document.head.addEventListener("load", late, true);
  return () => {
    media.removeEventListener("change", callback);
    observer.disconnect();
    document.head.removeEventListener("load", late, true);
  };
}
