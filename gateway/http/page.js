// The chat page: sends the conversation, shows the answer as it is streamed, and says how long it took.
"use strict";

const byId = (id) => document.getElementById(id);
const SETTINGS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
let conversation = []; // messages as the API has them
let running = null; // AbortController of the answer under way

function hexId(numBytes) {
  const bytes = crypto.getRandomValues(new Uint8Array(numBytes));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function element(parent, tag, className) {
  const made = document.createElement(tag);
  made.className = className;
  return parent.appendChild(made);
}

function addTurn(role, text) {
  const turn = element(byId("turns"), "article", role);
  element(turn, "div", "role").textContent = role;
  const reasoning = element(turn, "details", "reasoning");
  reasoning.hidden = true;
  element(reasoning, "summary", "").textContent = "Reasoning";
  const shown = {
    turn,
    reasoning,
    thought: element(reasoning, "div", "thought"),
    text: element(turn, "div", "text"),
    figures: element(turn, "div", "figures"),
  };
  shown.text.textContent = text;
  turn.scrollIntoView({ block: "end" });
  return shown;
}

function requestBody() {
  const system = byId("system").value.trim();
  const body = {
    model: byId("model").value,
    messages: system ? [{ role: "system", content: system }, ...conversation] : conversation,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of SETTINGS) {
    if (byId(name).value !== "") body[name] = Number(byId(name).value);
  }
  return body;
}

// The data of each server-sent event, as it comes.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function readAnswer(response, shown, times) {
  let answer = "";
  let usage = null;
  for await (const chunk of eventsOf(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    usage = chunk.usage ?? usage;
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.content || delta.reasoning_content) {
      times.first ??= performance.now();
      times.last = performance.now();
    }
    if (delta.reasoning_content) {
      shown.reasoning.hidden = false;
      shown.thought.append(delta.reasoning_content);
    }
    if (delta.content) {
      answer += delta.content;
      shown.text.append(delta.content);
      shown.turn.scrollIntoView({ block: "end" });
    }
  }
  return { answer, usage };
}

function figuresText(times, usage) {
  const parts = [];
  if (times.first) parts.push(`first token ${(times.first - times.start).toFixed(0)} ms`);
  if (usage) {
    parts.push(`${usage.prompt_tokens} tokens in, ${usage.completion_tokens} out`);
    const seconds = (times.last - times.first) / 1000;
    if (seconds > 0) parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
  }
  parts.push(`total ${((performance.now() - times.start) / 1000).toFixed(2)} s`);
  return `${parts.join(" · ")} · `;
}

function showFigures(shown, times, usage, traceId) {
  shown.figures.textContent = figuresText(times, usage);
  const link = element(shown.figures, "a", "trace");
  link.href = `/traces/${traceId}`;
  link.target = "_blank";
  link.textContent = "trace";
}

async function ask(message) {
  conversation.push({ role: "user", content: message });
  addTurn("user", message);
  const shown = addTurn("assistant", "");
  const traceId = hexId(16);
  const times = { start: performance.now() };
  running = new AbortController();
  setRunning(true);
  let usage = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { ...keyHeader(), "content-type": "application/json", traceparent: `00-${traceId}-${hexId(8)}-01` },
      body: JSON.stringify(requestBody()),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    ({ usage } = await readAnswer(response, shown, times));
  } catch (error) {
    if (error.name !== "AbortError") {
      shown.turn.classList.add("error");
      shown.text.append(String(error.message));
    }
  }
  // What was said before a stop stays part of the conversation; a failed answer does not.
  if (shown.turn.classList.contains("error")) conversation.pop();
  else conversation.push({ role: "assistant", content: shown.text.textContent });
  showFigures(shown, times, usage, traceId);
  running = null;
  setRunning(false);
}

function setRunning(isRunning) {
  byId("send").disabled = isRunning;
  byId("clear").disabled = isRunning;
  byId("stop").disabled = !isRunning;
}

function keyHeader() {
  const key = byId("api_key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function listModels() {
  const response = await fetch("/v1/models", { headers: keyHeader() });
  if (!response.ok) return;
  byId("model").replaceChildren();
  for (const { id } of (await response.json()).data) element(byId("model"), "option", "").textContent = id;
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = byId("message").value.trim();
  if (!message || running) return;
  byId("message").value = "";
  ask(message);
});
byId("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});
byId("api_key").addEventListener("change", listModels);
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  conversation = [];
  byId("turns").replaceChildren();
});
listModels();
