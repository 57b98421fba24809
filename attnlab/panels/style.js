// The panel's style sheet, as text because a widget in a shadow root has to bring its own. Colours come from theme.js as --al-* properties.
// An .al-caption holds all that may be said in one place, of which one is seen: the place is as high as the highest.
export const style = `
.attnlab { position: relative; container-type: inline-size; max-width: 1080px; color: var(--al-ink); font: 14px/1.4 var(--jp-ui-font-family, system-ui, -apple-system, "Segoe UI", sans-serif);
  font-variant-numeric: tabular-nums lining-nums; text-align: left; }
.attnlab * { box-sizing: border-box; }
.attnlab i { line-height: 0; font-family: "STIX Two Math", Cambria, Georgia, "Times New Roman", serif; font-size: 1.06em; }
.attnlab [hidden] { display: none !important; }
.jp-CodeCell:not(.jp-mod-outputsScrolled) :is(.jp-Cell-outputArea, .jp-OutputArea-child, .jp-OutputArea-output):has(.attnlab) { overflow: clip; }
.al-body { display: grid; grid-template-columns: minmax(0, 1fr); gap: 14px 28px; padding: 10px 2px 6px; }
.al-column { display: contents; }
.al-title { display: flex; flex-wrap: wrap; align-items: baseline; gap: 2px 12px; margin: 0; padding-bottom: 6px; border-bottom: 1px solid var(--al-line); }
.al-title b { font-size: 16px; font-weight: 600; }
.al-title > span, .attnlab figcaption, .al-note { color: var(--al-muted); font-size: 12px; line-height: 1.35; }
.al-dials { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 4px 20px; align-content: start; margin: 0; padding: 0; border: 0; min-width: 0; }
.al-dial { display: grid; grid-template-columns: 1fr auto; align-items: baseline; min-height: 46px; }
.al-dial output { font-weight: 600; }
.al-dial :is(input, select, .al-note) { grid-column: 1 / -1; }
.al-dial.al-off { opacity: .55; }
.al-switch { display: flex; align-items: center; min-height: 30px; }
.al-switch label { display: flex; flex: 1; align-items: center; align-self: stretch; padding-left: 8px; }
.attnlab input[type=range] { -webkit-appearance: none; appearance: none; width: 100%; height: 24px; margin: 0; padding: 0; background: transparent; cursor: pointer; }
.attnlab input[type=range]::-webkit-slider-runnable-track { height: 2px; background: linear-gradient(90deg, var(--al-ink) var(--al-at, 0%), var(--al-edge) var(--al-at, 0%)); }
.attnlab input[type=range]::-moz-range-track { height: 2px; background: var(--al-edge); }
.attnlab input[type=range]::-moz-range-progress { height: 2px; background: var(--al-ink); }
.attnlab input[type=range]::-webkit-slider-thumb { -webkit-appearance: none; width: 14px; height: 14px; margin-top: -6px; border: 0; border-radius: 50%; background: var(--al-ink); }
.attnlab input[type=range]::-moz-range-thumb { width: 14px; height: 14px; border: 0; border-radius: 50%; background: var(--al-ink); }
.attnlab input[type=range]:disabled { cursor: not-allowed; }
.attnlab input[type=checkbox] { width: 16px; height: 16px; margin: 0; accent-color: var(--al-ink); }
.attnlab select, .attnlab input[type=number], .attnlab button { font: inherit; color: inherit; background: var(--al-paper); border: 1px solid var(--al-line); border-radius: 4px; min-height: 30px; padding: 2px 10px; }
.attnlab :is(select, input[type=number]) { width: 100%; padding: 2px 6px; border-color: var(--al-edge); }
.attnlab button { cursor: pointer; }
.attnlab button:disabled { cursor: not-allowed; opacity: .55; }
.attnlab button:hover, .attnlab select:hover { border-color: var(--al-muted); }
.attnlab :is(input, select, button, canvas, summary, textarea, [tabindex]):focus-visible { outline: 2px solid var(--al-query); outline-offset: 2px; border-radius: 3px; }
.al-choices { display: inline-flex; }
.attnlab .al-choices button { min-height: 24px; padding: 0 9px; font-size: 12px; border-radius: 0; margin-left: -1px; }
.attnlab .al-choices button[aria-pressed=true] { background: var(--al-ink); border-color: var(--al-ink); color: var(--al-paper); }
.al-readout { grid-column: 1 / -1; padding-bottom: 5px; border-bottom: 1px solid var(--al-line); }
.al-readout p { display: flex; gap: 0 10px; height: 22px; margin: 0; line-height: 22px; white-space: nowrap; }
.al-readout span { overflow: hidden; text-overflow: ellipsis; color: var(--al-muted); }
.al-readout b { font-weight: 600; }
.attnlab .al-readout button { flex: none; min-height: 24px; margin: -1px 0 -1px auto; padding: 0; border: 0; color: var(--al-queryText); background: none; }
.attnlab .al-readout button:hover { text-decoration: underline; }
.al-readout p:nth-child(2) span { font-size: 12px; }
.al-bar { position: relative; display: flex; flex-wrap: wrap; align-items: center; gap: 6px; }
.attnlab .al-bar :is(button, select) { width: auto; min-height: 26px; padding: 1px 8px; font-size: 12px; }
.al-sharing { margin-left: auto; }
.al-sharing > .al-note { position: absolute; z-index: 2; top: calc(100% + 2px); right: 0; white-space: nowrap; background: var(--al-paper); }
.al-sharing > .al-note:not(:empty) { padding: 3px 8px; border: 1px solid var(--al-line); border-radius: 4px; }
.al-byhand { position: absolute; z-index: 2; top: 100%; right: 0; width: min(420px, 90cqw); height: 96px; padding: 6px; font: 12px/1.4 monospace; color: var(--al-ink); background: var(--al-paper); border: 1px solid var(--al-muted); border-radius: 4px; }
.al-numbers { grid-column: 1 / -1; border-top: 1px solid var(--al-line); }
.al-numbers summary { min-height: 30px; line-height: 30px; cursor: pointer; }
.attnlab .al-exact { min-height: 48px; margin: 0 0 6px; font-size: 12px; line-height: 16px; overflow-wrap: anywhere; }
.al-table { height: 300px; margin-top: 6px; overflow: auto; border: 1px solid var(--al-line); }
.attnlab table { border-collapse: collapse; margin: 0; font-size: 12px; color: var(--al-ink); background: none; }
.attnlab caption { position: static; padding: 4px 8px; text-align: left; color: var(--al-muted); }
.attnlab :is(th, td) { padding: 1px 8px; text-align: right; font-weight: 400; white-space: nowrap; border: 0; background: none; }
.attnlab :is(thead, tbody) tr { background: none; }
.attnlab th { color: var(--al-muted); }
.attnlab thead th { position: sticky; top: 0; background: var(--al-paper); box-shadow: 0 1px var(--al-line); }
.attnlab th:first-child { position: sticky; left: -1px; z-index: 1; padding-left: 9px; background: var(--al-paper); box-shadow: 1px 0 var(--al-line); }
.attnlab thead th:first-child { z-index: 2; box-shadow: 1px 1px var(--al-line); }
.attnlab td.al-here { outline: 1.5px solid var(--al-ink); outline-offset: -1px; }
.al-figures { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 16px 18px; align-content: start; min-width: 0; }
.attnlab figure { margin: 0; min-width: 0; grid-column: span 6; }
.attnlab figure.al-third { grid-column: span 2; }
.al-head { display: flex; align-items: center; gap: 12px; min-height: 26px; white-space: nowrap; }
.al-head b { flex: 1; font-weight: 600; overflow: hidden; text-overflow: ellipsis; }
.al-waiting canvas { opacity: .4; }
.al-source { color: var(--al-ink); }
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
.al-caption { display: grid; }
.al-caption > * { grid-area: 1 / 1; }
.al-spare { visibility: hidden; }
.al-alarm { color: var(--al-errorText); }
.al-verify { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 6px 12px; align-content: start; }
.al-verify .al-note { display: grid; align-content: center; min-height: 33px; }
.al-verify [role=list] { grid-column: 1 / -1; display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 0 20px; }
.al-verify [role=listitem] { padding: 4px 0; border-top: 1px solid var(--al-faint); color: var(--al-muted); font-size: 12px; line-height: 1.35; overflow-wrap: anywhere; }
.al-impl { display: flex; justify-content: space-between; gap: 8px; color: var(--al-ink); }
.al-verify .al-yes { color: var(--al-valueText); } .al-verify .al-no { color: var(--al-errorText); }
.al-verify.al-stale :is(.al-impl, .al-yes, .al-no) { color: var(--al-muted); }
.al-verify { position: relative; }
.al-verify summary { cursor: pointer; }
.attnlab .al-verify table { position: absolute; z-index: 2; left: 0; transform: translateY(calc(-100% - 1.5em)); border: 1px solid var(--al-line); background: var(--al-paper); }
.al-verify :is(th, td) { padding: 1px 4px; }
.al-error { position: sticky; bottom: 0; z-index: 3; margin-top: 8px; padding: 6px 10px; border-left: 3px solid var(--al-error); color: var(--al-errorText); background: var(--al-paper); overflow-wrap: anywhere; white-space: pre-wrap; }
.al-unseen { position: absolute; top: 0; left: 0; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@container (max-width: 759px) {
  .attnlab .al-third figcaption { min-height: 70px; }
  .al-bar > .al-note { position: absolute; z-index: 2; top: 100%; right: 0; background: var(--al-paper); }
  .al-bar > .al-note:not(:empty) { padding: 4px 0 4px 8px; }
}
@container (max-width: 999px) { .attnlab .al-exact { min-height: 64px; } }
@container (max-width: 679px) {
  .al-third .al-head { flex-flow: column; align-items: flex-start; gap: 0; min-height: 40px; }
  .al-third .al-head b { flex: none; max-width: 100%; }
}
@container (min-width: 520px) { .al-dials { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@container (min-width: 760px) {
  .al-body { grid-template-columns: 178px minmax(0, 1fr); grid-template-rows: auto 1fr; }
  .al-title { grid-column: 1 / -1; }
  .al-dials, .al-verify, .al-verify [role=list] { grid-template-columns: minmax(0, 1fr); }
  .al-verify .al-note { align-content: start; min-height: 49px; }
  .al-column { display: grid; gap: 14px; align-self: start; position: sticky; top: 0; }
  .al-figures { grid-column: 2; }
}
@container (max-width: 519px) {
  .al-dial:has(select) { grid-column: 1 / -1; }
  .al-sharing { margin: 2px 0; }
  .attnlab .al-sharing > button { padding: 0 5px; }
  .al-figures { gap: 14px 8px; }
  .attnlab figure:is(.al-chart, .al-heatmap:not(.al-third + .al-heatmap, :has(+ .al-heatmap))) { grid-column: span 6; }
  .attnlab figure:is(.al-chart, .al-heatmap:not(.al-third + .al-heatmap, :has(+ .al-heatmap))) .al-head { flex-flow: row; align-items: center; min-height: 26px; }
  .attnlab figure:is(.al-chart, .al-heatmap:not(.al-third + .al-heatmap, :has(+ .al-heatmap))) .al-head b { flex: 1; }
  .al-chart canvas { aspect-ratio: 1.6; }
  .attnlab .al-chart figcaption { min-height: 36px; }
  .attnlab figcaption { font-size: 11px; }
  .attnlab .al-wide canvas { height: 220px; }
  .al-head { gap: 6px; font-size: 13px; }
  .attnlab .al-numbers select { flex: 1; min-width: 0; }
  .attnlab .al-exact { min-height: 128px; }
  .al-scale { white-space: normal; }
  .al-readout { position: sticky; top: 0; z-index: 1; height: 130px; background: var(--al-paper); }
  .attnlab .al-readout p { display: grid; grid-template-columns: 1fr auto; height: auto; align-content: start; white-space: normal; }
  .al-readout :is(b, button) { order: -1; }
  .al-readout span { grid-column: 1 / -1; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; line-height: 18px; }
  .al-readout p:has(b:not(:empty)) span { -webkit-line-clamp: 2; }
  .attnlab .al-readout p:has(b:not(:empty)):first-child { height: 60px; }
  .attnlab .al-readout p + p span { -webkit-line-clamp: 2; font-size: 12px; line-height: 15px; }
  .attnlab .al-readout p:nth-child(3) { grid-template-columns: auto 1fr; column-gap: 0; margin-top: 3px; }
  .al-readout p:nth-child(3) span { grid-column: auto; }
  .al-readout p:nth-child(3) b { line-height: 15px; }
  .al-readout p:nth-child(3) b:not(:empty) { margin-right: 8px; }
}
@container (max-width: 359px) {
  .al-dials { column-gap: 14px; }
  :is(.al-dial, .al-switch) :is(label, output) { font-size: 12px; }
  .attnlab .al-exact { min-height: 144px; }
}
@media (pointer: coarse) {
  .attnlab :is(button, select, input[type=number]), .attnlab .al-bar :is(button, select), .attnlab .al-choices button { min-height: 36px; }
  .attnlab .al-readout button { margin: -7px 0 -7px auto; }
  .al-switch, .al-numbers summary { min-height: 36px; }
  .al-numbers summary { line-height: 36px; }
  .attnlab input[type=range] { height: 36px; }
  .attnlab input[type=range]::-webkit-slider-thumb { width: 22px; height: 22px; margin-top: -10px; }
  .attnlab input[type=range]::-moz-range-thumb { width: 22px; height: 22px; }
  .attnlab input[type=checkbox] { width: 22px; height: 22px; }
}
@media (prefers-reduced-motion: no-preference) { .attnlab button { transition: border-color .15s; } }
@media (forced-colors: active) {
  .attnlab input[type=range]::-webkit-slider-runnable-track { background: CanvasText; forced-color-adjust: none; }
  .attnlab input[type=range]::-moz-range-track { background: CanvasText; forced-color-adjust: none; }
  .attnlab input[type=range]::-webkit-slider-thumb { background: Highlight; forced-color-adjust: none; }
  .attnlab input[type=range]::-moz-range-thumb { background: Highlight; forced-color-adjust: none; }
  .attnlab .al-choices button[aria-pressed=true] { background: Highlight; border-color: Highlight; color: HighlightText; forced-color-adjust: none; }
  .attnlab :is(button, input):disabled, .al-dial.al-off { color: GrayText; opacity: 1; }
  .al-scale b { forced-color-adjust: none; }
}
@media print {
  .attnlab { max-width: none; zoom: .8; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .attnlab :is(.al-sharing, .al-choices, .al-numbers, .al-byhand, .al-spare, .al-readout button, input[type=range]) { display: none; }
  .attnlab :is(.al-verify > div:first-child, .al-verify :is(.al-note, details), .al-dial .al-note, .al-verify:not(:has([role=listitem]))) { display: none; }
  .al-readout:not(:has(b:not(:empty))), .al-readout p:not(:has(b:not(:empty)), p:has(b:not(:empty)) + p) { display: none; }
  .al-body { display: block; }
  .al-body > *, .al-column > * { margin-bottom: 12px; }
  .al-column { position: static; }
  .al-dials { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .attnlab :is(.al-dial, .al-switch) { display: flex; justify-content: space-between; align-items: baseline; grid-column: auto; min-height: 0; }
  .al-switch label { flex: none; order: -1; padding: 0; }
  .attnlab .al-dial :is(select, input) { width: auto; min-width: 0; min-height: 0; padding: 0; border: 0; appearance: none; text-align: right; text-align-last: right; font-weight: 600; }
  .attnlab .al-dial input { width: 6em; }
  .attnlab input::-webkit-inner-spin-button { display: none; }
  .attnlab .al-readout, .attnlab .al-readout p:first-child, .attnlab .al-readout p { height: auto; white-space: normal; }
  .attnlab .al-readout span { display: inline; }
  .attnlab canvas, .attnlab .al-wide canvas { height: auto; aspect-ratio: auto; }
  .attnlab .al-wide canvas { width: auto; max-width: 100%; max-height: 200px; }
  .attnlab .al-head b { white-space: normal; overflow: visible; }
  .attnlab figure.al-third { grid-column: span 2; }
  .attnlab figure.al-third figcaption { min-height: 0; }
  .attnlab figure, .al-verify [role=listitem], .al-dials { break-inside: avoid; }
  .al-error { position: static; }
}
`;
