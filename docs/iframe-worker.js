// Pages that are opened from the disk may not start a Web Worker. This one runs the same script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<html><body></body></html>");
      inside.document.close();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        urls.reduce((before, source) => before.then(() => load(inside, source)), Promise.resolve());
      this.ready = load(inside, url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}

function load(inside, source) {
  return new Promise((resolve, reject) => {
    const script = inside.document.createElement("script");
    Object.assign(script, { src: source, onload: resolve, onerror: reject });
    inside.document.body.appendChild(script);
  });
}
