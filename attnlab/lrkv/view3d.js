// A picture with depth: where a point of space stands on the page, and a drag that turns the view or moves the handle.
import { control } from "../panels/dom.js";

export const REACH = { x: 1.38, y: 1.15 }; // of the picture's axes, on either side of 0
const ASPECT = 1.15; // of the canvas: a circle is round on a telephone too
const PLOT = { left: 34, top: 16, across: 34 + 12, down: 16 + 32 }; // around a chart, as paint.js has it
const NEAR = 22; // pixels from the handle
const STILL = 3; // pixels that a click may move
const QUICK = 0.7; // degrees a pixel

// A function of points in space, parallel to the eye: turned around the upright axis, then tilted.
export function projection(dials) {
  const [turn, tilt] = [dials.turn, dials.tilt].map((degrees) => (degrees * Math.PI) / 180);
  return ([x, y, z]) => {
    const away = Math.sin(turn) * x + Math.cos(turn) * y;
    return [Math.cos(turn) * x - Math.sin(turn) * y, Math.cos(tilt) * z + Math.sin(tilt) * away];
  };
}

// Where the handle stands: at the tip of B's first column.
export const handle = (angle) => [Math.cos((angle * Math.PI) / 180), 0, Math.sin((angle * Math.PI) / 180)];

const panels = new WeakMap(); // the dials that are dragged, by panel

// Sliders that a drag over the picture moves too.
export const grip = (given) => {
  const own = control(given.dial, given.label, given.words, given.move, given.release);
  const set = (value) => {
    own.set(value);
    const panel = own.element.closest(".attnlab");
    if (panel && !panels.has(panel)) panels.set(panel, listen(panel.querySelector("[data-figure=subspace] canvas")));
    if (panel) panels.get(panel)[given.dial.name] = { ...given, value };
  };
  return { ...own, set };
};

function listen(canvas) {
  const dials = {};
  let held = null; // where and how a drag began
  let moved = false;
  canvas.style.aspectRatio = ASPECT;
  canvas.style.touchAction = "pan-y"; // a finger turns the picture sideways, and scrolls the page up and down

  // How many pixels the pointer is from the handle, were it at this angle.
  function apart({ offsetX, offsetY }, angle) {
    const { width, height } = canvas.getBoundingClientRect();
    const [x, y] = projection({ turn: dials.turn.value, tilt: dials.tilt.value })(handle(angle));
    const across = PLOT.left + ((x / REACH.x + 1) / 2) * (width - PLOT.across);
    const down = PLOT.top + ((1 - y / REACH.y) / 2) * (height - PLOT.down);
    return Math.hypot(across - offsetX, down - offsetY);
  }

  canvas.addEventListener("pointerdown", (event) => {
    const { clientX: x, clientY: y } = event;
    held = { x, y, turn: dials.turn.value, tilt: dials.tilt.value, lean: apart(event, dials.angle.value) < NEAR };
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [right, down] = [event.clientX - held.x, event.clientY - held.y];
    moved ||= Math.hypot(right, down) > STILL;
    if (!moved) return;
    if (held.lean) {
      const leans = Array.from({ length: dials.angle.dial.high + 1 }, (_, angle) => apart(event, angle));
      return dials.angle.move(leans.indexOf(Math.min(...leans)));
    }
    dials.turn.move(((Math.round(held.turn + QUICK * right) + 1260) % 360) - 180); // 1260 is half a turn, and three
    dials.tilt.move(Math.max(-90, Math.min(90, Math.round(held.tilt + QUICK * down))));
  });
  for (const type of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(type, () => {
      if (held && moved) dials.turn.release();
      held = null;
    });
  }
  // the click that ends a drag pins nothing
  const swallow = (event) => moved && event.target === canvas && event.stopPropagation();
  canvas.parentElement.addEventListener("click", swallow, true);
  return dials;
}
