// The site's search runs in a worker, which browsers do not allow to pages opened from the file system. There the
// same script runs in a hidden frame instead.
class FrameWorker extends EventTarget {
  /** @param {string | URL} url the worker's script */
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.documentElement.append(frame);
    /** @type {any} */
    const inside = frame.contentWindow;
    inside.document.open();
    inside.document.close();
    inside.postMessage = (/** @type {unknown} */ data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    /** Messages wait until the script has loaded. */
    this.loaded = new Promise((resolve) => script.addEventListener("load", resolve));
    this.inside = inside;
    script.src = String(url);
    inside.document.documentElement.append(script);
  }

  /** @param {unknown} data */
  async postMessage(data) {
    await this.loaded;
    this.inside.dispatchEvent(new MessageEvent("message", { data }));
  }
}

if (location.protocol === "file:") Object.assign(window, { Worker: FrameWorker });
