// The panel's style sheet, as text because a widget in a shadow root has to bring its own. Colours come from theme.js as --al-* properties.
export const style = `
.attnlab { position: relative; container-type: inline-size; max-width: 1080px; color: var(--al-ink); font: 14px/1.4 var(--jp-ui-font-family, system-ui, -apple-system, "Segoe UI", sans-serif);
  font-variant-numeric: tabular-nums lining-nums; text-align: left; }
.attnlab * { box-sizing: border-box; }
.attnlab i { line-height: 0; font-family: "STIX Two Math", Cambria, Georgia, "Times New Roman", serif; font-size: 1.06em; }
.attnlab [hidden] { display: none; }
.jp-CodeCell:not(.jp-mod-outputsScrolled) :is(.jp-Cell-outputArea, .jp-OutputArea-child, .jp-OutputArea-output):has(.attnlab) { overflow: clip; }
.al-body { display: grid; grid-template-columns: minmax(0, 1fr); gap: 14px 28px; padding: 10px 2px 6px; }
.al-column { display: contents; }
.al-verify { order: 1; }
.al-title { display: flex; flex-wrap: wrap; align-items: baseline; gap: 2px 12px; margin: 0; padding-bottom: 6px; border-bottom: 1px solid var(--al-line); }
.al-title b { font-size: 16px; font-weight: 600; }
.al-title span, .attnlab figcaption, .al-note { color: var(--al-muted); font-size: 12px; line-height: 1.35; }
.al-dials { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 4px 20px; align-content: start; margin: 0; padding: 0; border: 0; min-width: 0; }
.al-dial { display: grid; grid-template-columns: 1fr auto; align-items: baseline; min-height: 46px; }
.al-dial output { font-weight: 600; }
.al-dial :is(input, select, .al-note) { grid-column: 1 / -1; }
.al-dial.al-off { opacity: .55; }
.al-switch { display: flex; align-items: center; gap: 8px; min-height: 30px; }
.attnlab input[type=range] { -webkit-appearance: none; appearance: none; width: 100%; height: 24px; margin: 0; padding: 0; background: transparent; cursor: pointer; }
.attnlab input[type=range]::-webkit-slider-runnable-track { height: 2px; background: linear-gradient(90deg, var(--al-ink) var(--al-at, 0%), var(--al-line) var(--al-at, 0%)); }
.attnlab input[type=range]::-moz-range-track { height: 2px; background: var(--al-line); }
.attnlab input[type=range]::-moz-range-progress { height: 2px; background: var(--al-ink); }
.attnlab input[type=range]::-webkit-slider-thumb { -webkit-appearance: none; width: 14px; height: 14px; margin-top: -6px; border: 0; border-radius: 50%; background: var(--al-ink); }
.attnlab input[type=range]::-moz-range-thumb { width: 14px; height: 14px; border: 0; border-radius: 50%; background: var(--al-ink); }
.attnlab input[type=range]:disabled { cursor: not-allowed; }
.attnlab input[type=checkbox] { width: 16px; height: 16px; margin: 0; accent-color: var(--al-ink); }
.attnlab select, .attnlab input[type=number], .attnlab button { font: inherit; color: inherit; background: var(--al-paper); border: 1px solid var(--al-line); border-radius: 4px; min-height: 30px; padding: 2px 10px; }
.attnlab :is(select, input[type=number]) { width: 100%; padding: 2px 6px; }
.attnlab button { cursor: pointer; }
.attnlab button:hover, .attnlab select:hover { border-color: var(--al-muted); }
.attnlab :is(input, select, button, canvas):focus-visible { outline: 2px solid var(--al-query); outline-offset: 2px; border-radius: 3px; }
.al-choices { display: inline-flex; }
.attnlab .al-choices button { min-height: 24px; padding: 0 9px; font-size: 12px; border-radius: 0; margin-left: -1px; }
.attnlab .al-choices button[aria-pressed=true] { background: var(--al-ink); border-color: var(--al-ink); color: var(--al-paper); }
.al-readout { grid-column: 1 / -1; padding-bottom: 5px; border-bottom: 1px solid var(--al-line); }
.al-readout p { display: flex; gap: 10px; height: 22px; margin: 0; line-height: 22px; white-space: nowrap; }
.al-readout span { overflow: hidden; text-overflow: ellipsis; color: var(--al-muted); }
.al-readout b { font-weight: 600; }
.al-readout em { flex: none; margin-left: auto; color: var(--al-queryText); font-style: normal; }
.al-figures { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 16px 18px; align-content: start; min-width: 0; }
.attnlab figure { margin: 0; min-width: 0; grid-column: span 6; }
.attnlab figure.al-third { grid-column: span 2; }
.al-head { display: flex; align-items: center; gap: 12px; min-height: 26px; white-space: nowrap; }
.al-head b { flex: 1; font-weight: 600; overflow: hidden; text-overflow: ellipsis; }
.attnlab canvas { display: block; width: 100%; touch-action: manipulation; cursor: crosshair; }
.al-heatmap canvas { aspect-ratio: 1; }
.al-chart canvas { aspect-ratio: 1.15; }
.attnlab .al-wide canvas { aspect-ratio: auto; height: 184px; }
.attnlab figcaption { display: flex; flex-direction: column; gap: 2px; min-height: 54px; padding-top: 4px; }
.attnlab .al-wide figcaption { flex-flow: row wrap; gap: 2px 20px; min-height: 18px; }
.al-wide .al-scale { order: 1; margin-left: auto; }
.al-scale { display: grid; grid-template-columns: auto minmax(8px, 52px) auto; justify-content: start; align-items: center; gap: 0 5px; white-space: nowrap; }
.al-scale b { height: 7px; background: var(--al-cividis); }
.al-scale :last-child { grid-column: 1 / -1; white-space: normal; }
.al-alarm { color: var(--al-errorText); }
.al-verify .al-note { min-height: 49px; }
.al-verify { display: grid; gap: 6px; align-content: start; }
.al-verify [role=listitem] { padding: 4px 0; border-top: 1px solid var(--al-faint); color: var(--al-muted); font-size: 12px; line-height: 1.35; overflow-wrap: anywhere; }
.al-impl { display: flex; justify-content: space-between; gap: 8px; color: var(--al-ink); }
.al-verify .al-yes { color: var(--al-valueText); } .al-verify .al-no { color: var(--al-errorText); }
.al-verify.al-stale [role=list] { opacity: .5; }
.al-error { margin-top: 8px; padding: 6px 10px; border-left: 3px solid var(--al-error); color: var(--al-errorText); overflow-wrap: anywhere; white-space: pre-wrap; }
.al-unseen { position: absolute; top: 0; left: 0; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@container (max-width: 759px) { .attnlab .al-third figcaption { min-height: 70px; } }
@container (min-width: 520px) { .al-dials { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@container (min-width: 760px) {
  .al-body { grid-template-columns: 178px minmax(0, 1fr); grid-template-rows: auto 1fr; }
  .al-title { grid-column: 1 / -1; }
  .al-dials { grid-template-columns: minmax(0, 1fr); }
  .al-column { display: grid; gap: 14px; align-self: start; position: sticky; top: 0; }
  .al-figures { grid-column: 2; }
}
@container (max-width: 519px) {
  .al-figures { gap: 14px 8px; }
  .attnlab figure.al-chart { grid-column: span 6; }
  .al-chart canvas { aspect-ratio: 1.6; }
  .attnlab .al-chart figcaption { min-height: 36px; }
  .attnlab figcaption { font-size: 11px; }
  .al-third .al-scale { grid-template-rows: auto 1fr; min-height: 46px; white-space: normal; }
  .attnlab .al-wide canvas { height: 220px; }
  .al-head { gap: 6px; font-size: 13px; }
}
@media (prefers-reduced-motion: no-preference) { .attnlab button { transition: border-color .15s; } }
`;
