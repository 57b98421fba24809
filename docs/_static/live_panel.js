// Frames with a live panel: each is as high as the page in it says, and that page follows the colours of this one.
(() => {
  const frames = [...document.querySelectorAll(".live-panel iframe")];
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  // furo keeps "light", "dark" or "auto" there
  function theme() {
    const chosen = document.body.dataset.theme;
    return ["light", "dark"].includes(chosen) ? chosen : prefersDark.matches ? "dark" : "light";
  }

  const tell = ({ contentWindow }) => contentWindow.postMessage({ attnlab: { theme: theme() } }, "*");
  const tellAll = () => frames.forEach(tell);

  addEventListener("message", ({ source, data }) => {
    const frame = frames.find(({ contentWindow }) => contentWindow === source);
    const height = data?.attnlab?.height;
    if (!frame || !Number.isFinite(height)) return;
    frame.style.height = `${height}px`;
    tell(frame);
  });
  new MutationObserver(tellAll).observe(document.body, { attributeFilter: ["data-theme"] });
  prefersDark.addEventListener("change", tellAll);
  tellAll(); // a page that was there first says its height again
})();
