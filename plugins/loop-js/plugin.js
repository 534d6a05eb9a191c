// The runner `loop-js`: asks the model with the whole context, lets its calls run, asks again, and is
// done when the model stops. A model call that failed fails the turn, in the server's words.
//
// The shapes are those of the WIT files: names in camelCase, variants as { tag, val }, 64-bit numbers as
// BigInt, what is optional as null. Nothing that is kept in memory outlives a decision.

function describe() {
  return {
    plugin: {
      name: "loop-js",
      version: "0.1.0",
      summary: "Asks the model and runs its calls until it is done",
      optionsSchema: null,
    },
    stateVersion: 1,
    accepts: [],
  };
}

function decide(view) {
  const { tag, val } = view.trigger;
  if (tag === "model-failed") return { entries: [], action: { tag: "fail", val: val.message } };
  return isOver(view) ? { entries: [], action: { tag: "done" } } : ask(view);
}

// Whether the model has stopped, or a client asks for a compaction, and nothing else is to be answered.
function isOver({ trigger: { tag, val }, fresh, history }) {
  const stopped = tag === "model-finished" && val.tag !== "paused";
  if (!stopped && !(tag === "other" && val === "compact")) return false;
  return !news(fresh, history);
}

// Whether something has come in after the newest answer: a prompt, a result, a signal.
function news({ after, through }, history) {
  const { items } = history.read({ after, through }, "newest-first", 1);
  return items.length > 0 && items[0].body.tag !== "assistant";
}

// Everything so far, under the agent's system prompt; the last step is asked without tools. Calls that
// another runner left open are answered first: without that, no model can be asked.
function ask({ agent, budget, context, openCalls }) {
  const prompt = agent.systemPrompt;
  const system = prompt ? [{ tag: "message", val: { tag: "system", val: [text(prompt)] } }] : [];
  const call = {
    transcript: [...system, { tag: "items", val: context }],
    tools: budget.steps > 1 ? { tag: "all" } : { tag: "only", val: [] },
    ownTools: [],
    toolChoice: { tag: "auto" },
    hostedTools: [],
    options: {},
  };
  const entries = openCalls.map(({ id, tool }) => ({
    tag: "answer",
    val: { call: id, isError: true, output: [text(`\`${tool}\` is not offered any more.`)] },
  }));
  return { entries, action: { tag: "call-model", val: call } };
}

function text(val) {
  return { tag: "text", val };
}

export const steps = { describe, decide };
