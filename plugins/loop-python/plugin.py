"""The runner `loop-python`: asks the model with the whole context, lets its calls run, asks again, and is
done when the model stops. A model call that failed fails the turn, in the server's words.

The shapes are those of the WIT files, as `componentize-py bindings` writes them. Nothing that is kept in
memory outlives a decision.
"""

from wit_world.exports import Steps as Exported
from wit_world.exports import steps
from wit_world.imports import history, manifest, types


class Steps(Exported):
    def describe(self):
        return manifest.RunnerManifest(
            plugin=manifest.Plugin(
                name="loop-python",
                version="0.1.0",
                summary="Asks the model and runs its calls until it is done",
                options_schema=None,
            ),
            state_version=1,
            accepts=[],
        )

    def decide(self, view):
        match view.trigger:
            case steps.Trigger_ModelFailed(failure):
                return decision(steps.Action_Fail(failure.message))
            case trigger if stopped(trigger) and not news(view):
                return decision(steps.Action_Done())
            case _:
                return ask(view)


def decision(action, entries=()):
    return steps.Decision(entries=list(entries), action=action, state=None)


def stopped(trigger):
    """Whether the model has stopped, or a client asks for a compaction."""
    match trigger:
        case steps.Trigger_ModelFinished(reason):
            return not isinstance(reason, types.FinishReason_Paused)
        case steps.Trigger_Other(why):
            return why == "compact"
        case _:
            return False


def news(view):
    """Whether something has come in after the newest answer: a prompt, a result, a signal."""
    page = view.history.read(view.fresh, history.Order.NEWEST_FIRST, 1)
    return any(not isinstance(item.body, history.ItemBody_Assistant) for item in page.items)


def ask(view):
    """Everything so far, under the agent's system prompt; the last step is asked without tools. Calls
    that another runner left open are answered first: without that, no model can be asked."""
    transcript = [steps.Segment_Items(view.context)]
    if view.agent.system_prompt is not None:
        system = types.Message_System([types.Part_Text(view.agent.system_prompt)])
        transcript.insert(0, steps.Segment_Message(system))
    call = steps.ModelCall(
        model=None,
        transcript=transcript,
        tools=steps.ToolSet_All() if view.budget.steps > 1 else steps.ToolSet_Only([]),
        own_tools=[],
        tool_choice=types.ToolChoice_Auto(),
        hosted_tools=[],
        options=types.ModelOptions(None, None, None, None, None),
    )
    entries = [steps.Entry_Answer(answer(call)) for call in view.open_calls]
    return decision(steps.Action_CallModel(call), entries)


def answer(call):
    words = types.Part_Text(f"`{call.tool}` is not offered any more.")
    return steps.Answer(call=call.id, is_error=True, output=[words])
