// The stopwatch of `attnlab bench panels`, run in the page: from an event to the frame that shows what it did.
//
// Times are those of the page's clock. A frame ends in the task after its rendering: a message posted from an animation
// frame arrives when that frame's style, layout and paint are done.
() => {
  const animationFrame = window.requestAnimationFrame.bind(window);
  const QUIET = 3; // so many frames without a new picture, and the panel has settled
  const PATIENCE_MS = 5000;
  const PATIENCE_OPENING_MS = 20_000;

  // Within a frame: the time when it is over.
  const afterFrame = () =>
    new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => resolve(performance.now());
      port2.postMessage(null);
    });
  // The time when the next frame is over.
  const frameOver = () => new Promise((resolve) => animationFrame(() => resolve(afterFrame())));

  const panels = () => [...document.querySelectorAll(".attnlab")];
  const framesOf = (panel) => Number(panel.dataset.frames ?? 0);

  // What a panel's canvases show, as one number a figure: 0 for an empty one.
  function pictures(panel) {
    const figures = [...panel.querySelectorAll("[data-figure]")];
    return Object.fromEntries(figures.map((each) => [each.dataset.figure, fingerprint(each.querySelector("canvas"))]));
  }
  const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  function fingerprint(canvas) {
    const { width, height } = canvas;
    if (!width || !height) return 0;
    Object.assign(copy.canvas, { width, height });
    copy.drawImage(canvas, 0, 0);
    let hash = 0;
    for (const pixel of new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer)) {
      hash = Math.imul(hash ^ pixel, 0x01000193);
      hash ^= hash >>> 15;
    }
    return hash;
  }

  async function settled(panel) {
    let frames = framesOf(panel);
    for (let quiet = 0; quiet < QUIET; quiet++) {
      await frameOver();
      if (framesOf(panel) !== frames) quiet = -1;
      frames = framesOf(panel);
    }
  }

  // { figure: ms } from `start` to the last frame that changed it, for every figure that changes before all is quiet.
  async function follow(panel, start, before, frames) {
    const latencies = {};
    let quiet = -Infinity; // until the first frame
    while (quiet < QUIET) {
      const end = await frameOver();
      if (end > start + PATIENCE_MS) throw new Error(quiet < 0 ? "no frame followed the key" : "the panel never rests");
      quiet += 1;
      if (framesOf(panel) === frames) continue;
      quiet = 0;
      frames = framesOf(panel);
      const after = pictures(panel);
      for (const [figure, picture] of Object.entries(after)) {
        if (picture !== before[figure]) latencies[figure] = end - start;
      }
      before = after;
    }
    return latencies;
  }

  let answer = null; // to the event that `arm` waits for
  let track = null;

  window.attnlabStopwatch = {
    // The ms from now to the frame in which a panel that `run` brings has something in each of its figures.
    async firstPaint(run) {
      const old = panels();
      const start = performance.now();
      const done = run();
      for (;;) {
        const end = await frameOver();
        const panel = panels().find((panel) => !old.includes(panel));
        if (panel && framesOf(panel) && Object.values(pictures(panel)).every(Boolean)) {
          await done;
          await settled(panel);
          return end - start;
        }
        if (end > start + PATIENCE_OPENING_MS) throw new Error("the cell brought no panel with all its pictures");
      }
    },

    // Be ready for the next event of this type; `latencies` tells what it changed.
    async arm(type) {
      const [panel] = panels();
      await settled(panel);
      const before = pictures(panel);
      const frames = framesOf(panel);
      answer = new Promise((resolve) => {
        const begin = ({ timeStamp }) => resolve(follow(panel, timeStamp, before, frames));
        window.addEventListener(type, begin, { capture: true, once: true });
      });
    },
    latencies: () => answer,

    // From here to `endTrack`, every event of this type, "input" of a slider or "pointermove" over a heatmap, is timed to
    // the end of the frame that follows it. An input counts from the pointer event that moved the slider.
    async startTrack(type) {
      const [panel] = panels();
      await settled(panel);
      const before = framesOf(panel);
      const latencies = [];
      let pending = []; // moves that no frame has shown yet
      let pointed = 0;
      let over = false;
      const listening = new AbortController();
      const options = { capture: true, signal: listening.signal };
      window.addEventListener("pointermove", ({ timeStamp }) => (pointed = timeStamp), options);
      const take = ({ target }) => {
        if (type === "input" || target.closest(".al-heatmap canvas")) pending.push(pointed);
      };
      window.addEventListener(type, take, options);

      // Each frame asks for the next, so that none is missed however late its end is told; what it has painted is known
      // when the next one begins, before the panel's own turn.
      let frame = { shown: [], painted: before, end: null };
      const ends = [];
      let done;
      const recorded = new Promise((resolve) => (done = resolve));
      const record = () => {
        const { shown, painted, end } = frame;
        const now = framesOf(panel);
        if (now === painted) pending.unshift(...shown);
        else ends.push(end.then((time) => latencies.push(...shown.map((start) => time - start))));
        if (over) return done();
        frame = { shown: pending, painted: now, end: null };
        pending = [];
        animationFrame(record);
        frame.end = afterFrame();
      };
      animationFrame(record);
      track = async () => {
        await settled(panel);
        over = true;
        await recorded;
        await Promise.all(ends);
        listening.abort();
        return { latencies, lost: pending.length, frames: framesOf(panel) - before };
      };
    },
    endTrack: () => track(),
  };
}
