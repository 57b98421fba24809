// The panel on an exported page: its state stands in the page as a link, and the address may carry another one; nothing
// is ever asked of a network. Inside a frame the page tells its height and follows the colours of the page around it.

// Arrays stand in JSON as { base64 }.
const revived = (_, value) =>
  value?.base64 === undefined ? value : Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
const START = "\nstart();";

export function start(mount) {
  const text = document.querySelector("#attnlab-module").textContent;
  const { link: own, data } = JSON.parse(document.querySelector("#attnlab-given").textContent, revived);
  const element = document.querySelector("#attnlab-panel");
  let opening = true; // the address is still to be read
  const view = mount(element, {
    data,
    source: text.slice(0, text.lastIndexOf(START)).trim() + "\n",
    host: {
      // a page without an address of its own, as in a frame of srcdoc, has links like a notebook's
      address: () => (/^(about|blob|data):/.test(location.href) ? "" : location.href.split("#")[0]),
      // The address follows, so that a reload and a bookmark keep what is on the screen; with it goes the sentence about
      // a link that was refused.
      save(_, link) {
        if (opening) return;
        try {
          history.replaceState(null, "", link);
        } catch {
          // a browser that counts such calls: the next one brings the address up to date
        }
        view.open(link);
      },
    },
  });
  // without a link in the address, also after a step back, the page is as it was made
  const follow = () => view.open(location.hash.length > 1 ? location.hash : own);
  view.open(own);
  follow();
  opening = false;
  addEventListener("hashchange", follow);
  if (window.parent !== window) framed(element);
}

// A page around that answers gives the frame the height it is told, so the frame needs no scrollbars.
function framed(element) {
  const tell = () => window.parent.postMessage({ attnlab: { height: Math.ceil(element.scrollHeight) + 4 } }, "*");
  addEventListener("message", ({ source, data }) => {
    if (source !== window.parent || !["light", "dark"].includes(data?.attnlab?.theme)) return;
    document.documentElement.dataset.theme = data.attnlab.theme;
    if (document.body.classList.contains("framed")) return;
    document.body.classList.add("framed");
    tell();
  });
  new ResizeObserver(tell).observe(element);
}
