// Everything a document or a run says goes through textContent: it can never become markup.
"use strict";

const find = (id) => document.getElementById(id);
const percent = (share) => (100 * share).toFixed(1) + " %";
const MOST_LABELS = 10; // in a table, the most probable first
let limits = null;

function element(name, content = "", className = "") {
  const made = document.createElement(name);
  made.className = className;
  if (typeof content === "string") made.textContent = content;
  else made.append(...content);
  return made;
}

function tell(message, isProblem = false) {
  find("status").textContent = message;
  find("status").classList.toggle("problem", isProblem);
}

async function request(path, options = {}) {
  const key = find("key").value.trim();
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service cannot be reached.");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401 && find("key-field").hidden) {
    find("key-field").hidden = false;
    find("key").focus();
    throw new Error("This service asks for an API key.");
  }
  if (!response.ok) throw new Error(answer.detail || `The service answered ${response.status}.`);
  return answer;
}

async function loadRuns() {
  const answer = await request("v1/runs");
  limits = answer.limits;
  find("runs").replaceChildren(
    ...answer.runs.map((run) => {
      const box = element("input");
      box.type = "checkbox";
      box.checked = true;
      box.value = run.name;
      return element("label", [box, element("span", run.name)]);
    })
  );
}

function probabilities(prediction) {
  const rows = Object.entries(prediction.probabilities).sort((one, other) => other[1] - one[1]);
  const lines = rows.slice(0, MOST_LABELS).map(([label, share]) => {
    const bar = element("progress");
    bar.value = share;
    bar.setAttribute("aria-hidden", "true"); // the number beside it says the same
    const name = element("th", label);
    name.scope = "row";
    return element("tr", [name, element("td", [bar], "bar"), element("td", percent(share))]);
  });
  const table = element("table", [element("caption", "Probability of each label", "visually-hidden"), element("tbody", lines)]);
  const more = rows.length - lines.length;
  return more > 0 ? [table, element("p", `and ${more} less probable labels`, "hint")] : [table];
}

function howMuchWasRead(prediction) {
  const { tokens, tokens_read: read, chunks } = prediction;
  if (prediction.truncated) return `Read ${percent(read / tokens)} of the document: ${read} of ${tokens} tokens.`;
  return `Read the whole document: ${tokens} tokens` + (chunks > 1 ? `, in ${chunks} chunks.` : ".");
}

function card(name, prediction) {
  const severalLabels = prediction.labels !== undefined;
  const labels = severalLabels ? prediction.labels.join(", ") || "no label" : prediction.label;
  const shown = severalLabels ? labels : `${labels} · ${percent(prediction.confidence)}`;
  const head = [element("h3", name)];
  if (prediction.decision) {
    const words = { accept: "✓ accept", review: "⚠ review" };
    head.push(element("span", words[prediction.decision] ?? prediction.decision, `decision ${prediction.decision}`));
  }
  // The passages that an answer rests on belong below the table, when the service tells them.
  return element("article", [
    element("div", head, "head"),
    element("p", shown, "answer"),
    ...probabilities(prediction),
    element("p", howMuchWasRead(prediction), "hint"),
  ], "card");
}

async function ask() {
  if (find("ask").getAttribute("aria-disabled") === "true") return;
  const text = find("text").value;
  find("ask").setAttribute("aria-disabled", "true");
  try {
    if (limits === null) await loadRuns();
    const runs = [...find("runs").querySelectorAll("input:checked")].map((box) => box.value);
    if (!text.trim()) throw new Error("Paste or drop a document first.");
    if (!runs.length) throw new Error("Choose at least one run.");
    tell("Reading …");
    const body = JSON.stringify({ texts: [text], runs, long: find("long").checked ? "chunk-average" : "truncate" });
    const headers = { "Content-Type": "application/json" };
    const { predictions } = await request("v1/predict", { method: "POST", headers, body });
    const found = Object.entries(predictions[0]);
    find("answers").replaceChildren(...found.map(([name, prediction]) => card(name, prediction)));
    tell(found.length === 1 ? "1 prediction." : `${found.length} predictions.`);
  } catch (problem) {
    find("answers").replaceChildren();
    tell(problem.message, true);
  } finally {
    find("ask").removeAttribute("aria-disabled");
  }
}

async function open(file) {
  if (!file) return;
  if (limits && file.size > limits.body_mb * 1e6) return tell(`${file.name} is too large; a document has at most ${limits.body_mb} MB.`, true);
  try {
    find("text").value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    tell(`${file.name} is in the field.`);
  } catch {
    tell(`${file.name} is not a text file in UTF-8.`, true);
  }
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
find("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
});
find("key").addEventListener("change", () => loadRuns().then(() => tell("The key is right."), (problem) => tell(problem.message, true)));
find("file").addEventListener("change", (event) => {
  open(event.target.files[0]);
  event.target.value = ""; // the same file can be opened again
});
for (const type of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(type, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return; // text is dropped as browsers do it
    event.preventDefault();
    find("form").classList.toggle("dropping", type === "dragover");
    if (type === "drop") open(event.dataTransfer.files[0]);
  });
}
loadRuns().catch((problem) => tell(problem.message, true));
