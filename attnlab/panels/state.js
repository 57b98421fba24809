// The one shared object: { version, dials, selection, language }. A state is taken whole or refused with a sentence;
// panels/state.py refuses the same.

export function defaults(spec) {
  return {
    version: spec.version,
    dials: Object.fromEntries(spec.dials.map((dial) => [dial.name, dial.default])),
    selection: {
      ...Object.fromEntries(Object.entries(spec.options).map(([name, choices]) => [name, choices[0]])),
      view: spec.views[0],
      pin: null,
    },
    language: spec.languages[0],
  };
}

const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const quote = (value) => (typeof value === "number" ? String(value) : (JSON.stringify(value) ?? String(value)));

// The state itself, or an Error whose message names the part, what was wanted and what came.
export function checked(state, spec) {
  exactly("state", state, ["version", "dials", "selection", "language"]);
  if (state.version !== spec.version) refuse("state.version", `be ${spec.version}`, state.version);
  exactly(
    "state.dials",
    state.dials,
    spec.dials.map((dial) => dial.name),
  );
  for (const dial of spec.dials) checkDial(dial, state.dials[dial.name]);
  exactly("state.selection", state.selection, [...Object.keys(spec.options), "view", "pin"]);
  for (const [name, choices] of [...Object.entries(spec.options), ["view", spec.views]])
    oneOf(`state.selection.${name}`, state.selection[name], choices);
  checkPin(state.selection.pin, spec.axes);
  oneOf("state.language", state.language, spec.languages);
  return state;
}

function checkDial({ name, kind, low, high, choices, points }, value) {
  if (kind === "switch") {
    if (typeof value !== "boolean") refuse(name, "be true or false", value);
  } else if (kind === "choice") {
    oneOf(name, value, choices);
  } else if (kind === "curve") {
    if (!Array.isArray(value) || value.length !== points) refuse(name, `be a list of ${points} numbers`, value);
    value.forEach((height, n) => checkDial({ name: `${name}[${n}]`, low, high }, height));
  } else if (
    typeof value !== "number" ||
    !(value >= low && value <= high) ||
    (kind === "whole" && !Number.isInteger(value))
  ) {
    refuse(name, `be a ${kind === "whole" ? "whole " : ""}number in [${low}, ${high}]`, value);
  }
}

function checkPin(pin, axes) {
  if (pin === null) return;
  if (!isRecord(pin) || !Object.keys(pin).length) refuse("state.selection.pin", "be null or a record of indices", pin);
  for (const [axis, index] of Object.entries(pin)) {
    oneOf("each key of state.selection.pin", axis, axes);
    if (!Number.isSafeInteger(index) || index < 0)
      refuse(`state.selection.pin.${axis}`, `be a whole number in [0, ${Number.MAX_SAFE_INTEGER}]`, index);
  }
}

function exactly(name, record, keys) {
  if (!isRecord(record)) refuse(name, `be a record with ${keys.join(", ")}`, record);
  for (const key of keys)
    if (!Object.hasOwn(record, key)) throw new Error(`${name} must have ${key}, which is missing`);
  for (const key of Object.keys(record))
    if (!keys.includes(key)) throw new Error(`${name} must have only ${keys.join(", ")}, got ${quote(key)} too`);
}

function oneOf(name, value, choices) {
  if (!choices.includes(value)) refuse(name, `be one of ${choices.map(quote).join(", ")}`, value);
}

function refuse(name, wanted, value) {
  throw new Error(`${name} must ${wanted}, got ${quote(value)}`);
}
