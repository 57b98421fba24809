// The bridge between anywidget's model and the kit: traits in, the released state and the wish to verify out.
export function render(mount, { model, el }, source) {
  // What no kernel hears, ipywidgets drops without a word. A model out of a saved notebook never had a kernel, which its
  // view carries as a class; a restart ends one, which the model tells; a kernel shut down or changed is another object.
  const restored = el.classList.contains("jupyter-widgets-disconnected");
  const kernel = model.widget_manager?.kernel;
  let connected = !restored;
  const disconnect = () => (connected = false);
  const heard = () => connected && model.widget_manager?.kernel === kernel && kernel?.status !== "dead";
  const unheard = () => new Error("no kernel hears this panel"); // the kit says what to do
  const host = {
    get python() {
      return heard();
    },
    save(state) {
      model.set("state", state); // also where nobody hears it: other views of this model follow
      if (heard()) model.save_changes();
      else if (!restored) throw unheard(); // of a restored panel nobody expects that Python follows
    },
    verify(state) {
      if (!heard()) throw unheard();
      model.send({ kind: "verify", state });
    },
  };
  const given = { state: model.get("state"), data: model.get("data"), still: model.get("still") };
  const view = mount(el, { ...given, source, host });
  const follow = {
    "change:state": () => view.show(model.get("state")),
    "change:data": () => view.give(model.get("data")),
    "change:report": () => view.report(model.get("report")),
    "change:error": () => view.fail(model.get("error")),
    comm_live_update: disconnect,
  };
  follow["change:report"]();
  follow["change:error"]();
  for (const [event, act] of Object.entries(follow)) model.on(event, act);
  return () => {
    for (const [event, act] of Object.entries(follow)) model.off(event, act);
    view.remove();
  };
}
