// Everything a document or a run says goes through textContent: it can never become markup.
"use strict";

const find = (id) => document.getElementById(id);
const percent = (share) => (100 * share).toFixed(1) + " %";
const signed = (score) => (score < 0 ? "−" : "+") + Math.abs(score).toFixed(2);
const MOST_LABELS = 10; // in a table, the most probable first
const STRONGEST = 3; // passages in front of the whole text
let limits = null;
let asked = 0; // questions so far: what comes late for an earlier one is not shown

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

function strongest(passages) {
  const best = passages.filter((each) => each.score > 0).sort((one, other) => other.score - one.score).slice(0, STRONGEST);
  if (!best.length) return element("p", "No passage speaks for it by itself.", "hint");
  return element("ol", best.map((each) => element("li", [
    element("span", signed(each.score), "score"),
    element("span", each.text.length > 200 ? each.text.slice(0, 200) + " …" : each.text),
  ])), "passages");
}

// All that was read. The stronger a passage, the stronger its mark; a screen reader hears the score in front of it.
function markedText(passages) {
  const largest = Math.max(...passages.map((each) => Math.abs(each.score))) || 1;
  const marks = passages.flatMap((each) => {
    const share = Math.abs(each.score) / largest;
    const mark = element(share < 0.1 ? "span" : "mark", [], each.score > 0 ? "for" : "against");
    mark.style.setProperty("--share", `${Math.round(share * 70)}%`);
    mark.title = signed(each.score);
    if (share >= 0.1) mark.append(element("span", `[${each.score > 0 ? "for" : "against"}, ${signed(each.score)}] `, "visually-hidden"));
    mark.append(each.text);
    return [mark, " "];
  });
  const text = element("div", marks, "text");
  text.tabIndex = 0; // it scrolls, also by keyboard
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", "Document with marked passages");
  const legend = element("p", [element("mark", "for", "for"), " and ", element("mark", "against", "against"), " the label"], "hint");
  const details = element("details", [element("summary", "In the document"), legend, text]);
  details.open = true;
  details.setAttribute("aria-label", "Marked passages");
  return details;
}

function reasonsOf(reasons) {
  return reasons.flatMap(({ label, passages }) => {
    if (!passages.length) return [element("p", "There is nothing to read.", "hint")];
    return [element("h4", `Why ${label}?`), strongest(passages), markedText(passages)];
  });
}

// One run at a time, after all answers are shown: reasons take longer.
async function showReasons(question, cards) {
  const current = asked;
  for (const [name, place] of cards) {
    place.textContent = "Looking for the passages …";
    try {
      const { predictions } = await predict({ ...question, runs: [name], reasons: true });
      if (current !== asked) return;
      place.replaceChildren(...reasonsOf(predictions[0][name].reasons ?? []));
    } catch (problem) {
      if (current !== asked) return;
      place.textContent = `No passages: ${problem.message}`;
    }
  }
}

function predict(question) {
  const headers = { "Content-Type": "application/json" };
  return request("v1/predict", { method: "POST", headers, body: JSON.stringify(question) });
}

function card(name, prediction, reasons) {
  if (prediction.error) return element("article", [element("h3", name), element("p", prediction.error, "review")], "card");
  const severalLabels = prediction.labels !== undefined;
  const labels = severalLabels ? prediction.labels.join(", ") || "no label" : prediction.label;
  const shown = severalLabels ? labels : `${labels} · ${percent(prediction.confidence)}`;
  const head = [element("h3", name)];
  if (prediction.decision) {
    const words = { accept: "✓ accept", review: "⚠ review" };
    head.push(element("span", words[prediction.decision] ?? prediction.decision, `decision ${prediction.decision}`));
  }
  return element("article", [
    element("div", head, "head"),
    element("p", shown, "answer"),
    ...probabilities(prediction),
    element("p", howMuchWasRead(prediction), "hint"),
    reasons,
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
    const question = { texts: [text], long: find("long").checked ? "chunk-average" : "truncate" };
    const { predictions } = await predict({ ...question, runs });
    asked += 1;
    const found = Object.entries(predictions[0]);
    const places = new Map(found.map(([name]) => [name, element("div", "", "reasons")]));
    find("answers").replaceChildren(...found.map(([name, prediction]) => card(name, prediction, places.get(name))));
    tell(found.length === 1 ? "1 prediction." : `${found.length} predictions.`);
    if (find("reasons").checked) showReasons(question, [...places].filter(([name]) => !predictions[0][name].error));
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
