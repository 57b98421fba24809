// The bridge between anywidget's model and the kit: traits in, the released state and the wish to verify out.
import { mount } from "./kit.js";

export function render(panel, spec, { model, el }) {
  const host = {
    save(state) {
      model.set("state", state);
      model.save_changes();
    },
    verify(state) {
      host.save(state); // so that `params` are what was verified, also where no slider was let go
      model.send({ kind: "verify", state });
    },
  };
  const view = mount(el, panel, { spec, state: model.get("state"), data: model.get("data"), host });
  const follow = {
    state: () => view.show(model.get("state")),
    data: () => view.give(model.get("data")),
    report: () => view.report(model.get("report")),
    error: () => view.fail(model.get("error")),
  };
  follow.report();
  follow.error();
  for (const [trait, update] of Object.entries(follow)) model.on(`change:${trait}`, update);
  return () => {
    for (const [trait, update] of Object.entries(follow)) model.off(`change:${trait}`, update);
    view.remove();
  };
}
