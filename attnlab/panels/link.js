// A state as the fragment of a link, and as the Python call that rebuilds it; panels/link.py writes the same texts.
//
//     #race&version=1&planes=3&...&causal=false&input=toy&features=keys&view=band&pin=query.3,key.5&language=en
//
// First the mechanism, then every part of the state under its name; values are percent-encoded, `pin=` is no pin. A
// number is written in the fewest digits that read back to the same double, a curve as its numbers with commas between.
// Reading is strict, and evaluates nothing.
import { checked } from "./state.js";

export const LIMIT = 4096; // characters after the #
const SHOWN = 80; // characters of what came, in a refusal
const WHOLE = /^(?:0|-?[1-9][0-9]{0,15})$/;
const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e-?[0-9]+)?$/;
const quoted = (text) => JSON.stringify(text); // a string of JSON is one of Python

// The state in one line that begins with #. Throws an Error for a state that is not whole or not in range.
export function fragment(state, spec) {
  const values = valuesOf(state, spec);
  const pairs = partsOf(spec).map((part) => `${part.name}=${inALink(part, values[part.name])}`);
  return `#${[spec.mechanism, ...pairs].join("&")}`;
}

// The state that a fragment, or a URL that ends with one, stands for. The message of an Error names the part, what was
// wanted and what came, also for a part missing, unknown or given twice.
export function fromFragment(text, spec) {
  const [mechanism, ...pairs] = whatFollows(text).split("&");
  if (mechanism !== spec.mechanism) refuse("the mechanism of a link", `be ${spec.mechanism}`, mechanism);
  const parts = new Map(partsOf(spec).map((part) => [part.name, part]));
  const values = new Map();
  for (const pair of pairs) {
    const [name, raw] = cut(pair, "=");
    if (raw === null) refuse("each part of a link", "be name=value", pair);
    if (!parts.has(name)) refuse("the names in a link", `be ${[...parts.keys()].join(", ")}`, name);
    if (values.has(name)) refuse(name, "be given once, and was before", raw);
    values.set(name, read(parts.get(name), raw));
  }
  for (const name of parts.keys())
    if (!values.has(name)) throw new Error(`${name} must be given once, and is missing in the link`);
  const record = (names) => Object.fromEntries(names.map((name) => [name, values.get(name)]));
  const state = {
    version: values.get("version"),
    dials: record(spec.dials.map(({ name }) => name)),
    selection: record([...Object.keys(spec.options), "view", "pin"]),
    language: values.get("language"),
  };
  return checked(state, spec);
}

// Python that rebuilds the panel: an import, and a call with every dial, option and the view. The pin is named where
// there is one, the language where it is not the first. Throws an Error for a state that is not whole or not in range.
export function call(state, spec) {
  const values = valuesOf(state, spec);
  const unsaid = { version: spec.version, pin: null, language: spec.languages[0] };
  const said = partsOf(spec).filter(({ name }) => !Object.hasOwn(unsaid, name) || values[name] !== unsaid[name]);
  const args = said.map((part) => `${part.name}=${inPython(part, values[part.name])}`).join(", ");
  return `from attnlab.${spec.mechanism}.widget import ${spec.widget}\n\n${spec.widget}(${args})`;
}

// What a link holds after the mechanism, in order.
function partsOf(spec) {
  const choices = Object.entries({ ...spec.options, view: spec.views });
  return [
    { name: "version", kind: "whole" },
    ...spec.dials,
    ...choices.map(([name, names]) => ({ name, kind: "choice", choices: names })),
    { name: "pin", kind: "pin", axes: spec.axes },
    { name: "language", kind: "choice", choices: spec.languages },
  ];
}

function valuesOf(state, spec) {
  checked(state, spec);
  return { version: state.version, language: state.language, ...state.dials, ...state.selection };
}

// -- writing ----------------------------------------------------------------------------------------------------------

function inALink({ kind }, value) {
  if (kind === "switch") return value ? "true" : "false";
  if (kind === "choice") return encoded(value);
  if (kind === "pin") return Object.entries(value ?? {}).map(([axis, index]) => `${encoded(axis)}.${index}`).join(",");
  if (kind === "curve") return value.map(digits).join(",");
  return kind === "whole" ? String(value) : digits(value);
}

function inPython({ kind }, value) {
  if (kind === "switch") return value ? "True" : "False";
  if (kind === "choice") return quoted(value);
  if (kind === "pin") return `{${Object.entries(value ?? {}).map(([axis, index]) => `${quoted(axis)}: ${index}`).join(", ")}}`;
  if (kind === "curve") return `[${value.map(digits).join(", ")}]`;
  return kind === "whole" ? String(value) : digits(value);
}

// A chat or Markdown ends a link at some of the signs that encodeURIComponent leaves alone.
function encoded(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
}

// The fewest digits that read back to the same double, with an exponent where Python's repr has one.
function digits(value) {
  if (Object.is(value, -0)) return "-0.0"; // to Python -0 would be a whole number, and lose its sign
  const size = Math.abs(value);
  const long = size !== 0 && (size < 1e-4 || size >= 1e16);
  return long ? value.toExponential().replace("+", "") : String(value);
}

// -- reading ----------------------------------------------------------------------------------------------------------

// The characters after the first #.
function whatFollows(text) {
  if (typeof text !== "string") throw new Error(`a link must be text, got ${typeof text}`);
  const raw = cut(text, "#")[1];
  if (raw === null) refuse("a link", "have a # in it", text);
  if (raw.length > LIMIT)
    throw new Error(`a link must have at most ${LIMIT} characters after its #, got ${raw.length}`);
  const strange = raw.match(/[^!-~]/u);
  if (strange) {
    const code = strange[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    throw new Error(`a link must be ASCII without spaces, got U+${code} in it`);
  }
  return raw;
}

// What stands before the first `mark` and after it; null after it where there is none.
function cut(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, null] : [text.slice(0, at), text.slice(at + 1)];
}

function read({ name, kind, choices, axes, low, high }, raw) {
  const text = decoded(name, raw);
  if (kind === "switch") return oneOf(name, text, ["true", "false"], raw) === "true";
  if (kind === "choice") return oneOf(name, text, choices, raw);
  if (kind === "pin") return readPin(text, axes, raw);
  if (kind === "whole") return whole(name, text, raw, low, high);
  if (kind === "curve") return text.split(",").map((height) => number(name, height, raw));
  return number(name, text, raw);
}

function number(name, text, raw) {
  if (!NUMBER.test(text) || !Number.isFinite(Number(text))) refuse(name, "be a finite number in decimal digits", raw);
  return Number(text);
}

function decoded(name, raw) {
  try {
    return decodeURIComponent(raw);
  } catch {
    return refuse(name, "be percent-encoded UTF-8", raw);
  }
}

function oneOf(name, text, choices, raw) {
  if (!choices.includes(text)) refuse(name, `be one of ${choices.map(quoted).join(", ")}`, raw);
  return text;
}

function whole(name, text, raw, low = 0, high = Number.MAX_SAFE_INTEGER) {
  if (!WHOLE.test(text ?? "") || !Number.isSafeInteger(Number(text)))
    refuse(name, `be a whole number in [${low}, ${high}]`, raw);
  return Number(text);
}

function readPin(text, axes, raw) {
  if (text === "") return null;
  const pin = new Map();
  for (const entry of text.split(",")) {
    const [axis, index] = cut(entry, ".");
    oneOf("each axis of pin", axis, axes, raw);
    if (pin.has(axis)) refuse("pin", `name ${axis} once`, raw);
    pin.set(axis, whole(`pin.${axis}`, index, raw));
  }
  return Object.fromEntries(pin);
}

function refuse(name, wanted, came) {
  const shown = came.length <= SHOWN ? came : `${came.slice(0, SHOWN)}…`;
  throw new Error(`${name} must ${wanted}, got ${quoted(shown)}`);
}
