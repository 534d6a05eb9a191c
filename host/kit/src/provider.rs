//! What a provider promises: one exchange for one request, and an answer that means the same however
//! its bytes come.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_core::plugin::{
    Exchange, GuestError, ModelEvent, ModelRequest, PluginInfo, Plugins as _, Workspace,
};
use mainstay_runtime::limits::Limits;

use crate::bench::Bench;
use crate::cast::{Cast, Script};
use crate::corpus::{self, Answer};
use crate::input::{self, Bulk};
use crate::report::{Finding, Property, Report};
use crate::runner::answered;
use crate::stage::Scene;
use crate::{Error, cuts};

/// Answers up to so many bytes are cut at every one; longer ones at so many places.
const EVERY_CUT: usize = 2_048;

pub(crate) async fn check(
    bench: &Bench,
    info: &Arc<PluginInfo>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut traps = Finding::new(Property::NeverTraps);
    let mut alike = Finding::new(Property::EncodesAlike);
    let mut classifies = Finding::new(Property::ClassifiesEverything);
    let mut rules = Finding::new(Property::AnswersKeepTheRules);
    let mut matter = Finding::new(Property::CutsDoNotMatter);

    let mut memo = Vec::new();
    let requests = input::requests(info, bench.options.options.as_ref());
    for (n, (name, bulk, request)) in requests.iter().enumerate() {
        let encoded = bench.runtime.encode(&info.digest, request.clone()).await;
        traps.case(
            format!("encode of {name}"),
            answered(*bulk, encoded.as_ref().err()),
        );
        let Ok(exchange) = encoded else {
            continue;
        };
        // NaN is like nothing, not even itself.
        let again = bench.other.encode(&info.digest, request.clone()).await;
        let same = format!("{again:?}") == format!("{:?}", Ok::<_, GuestError>(&exchange));
        let differs = || format!("asked again, it gives another exchange: {again:?}");
        alike.case(name, if same { Ok(()) } else { Err(differs()) });
        match exchange {
            Exchange::Http { memo: left, .. } if n == 0 => memo = left,
            Exchange::Http { .. } => {}
            Exchange::Local(local) => {
                let events = local.into_iter().map(|local| local.event).collect();
                rules.case(format!("the local answer to {name}"), keep_rules(&events));
            }
        }
    }
    for answer in corpus::errors() {
        let Answer { name, head, body } = answer;
        let classified = bench.runtime.classify_by_guest(&info.digest, head, body);
        let went = classified.await.map(drop);
        classifies.case(name, went.map_err(|error| error.to_string()));
    }

    let mut speaks = None;
    for answer in corpus::answers(&bench.options.answers) {
        let name = &answer.name;
        let whole = decode(bench, info, &answer, &memo, &[]).await;
        traps.case(
            format!("the answer `{name}`"),
            answered(Bulk::Fits, whole.as_ref().err()),
        );
        let Ok(whole) = whole else {
            continue;
        };
        rules.case(name, keep_rules(&whole));
        if speaks.is_none() && matches!(whole.last(), Some(ModelEvent::Finished(_))) {
            speaks = Some(answer.clone());
        }
        if !bench.options.asks(&[Property::CutsDoNotMatter]) {
            continue;
        }
        let whole = joined(whole);
        let single: Vec<usize> = (1..answer.body.len()).collect();
        let step = answer.body.len().div_ceil(EVERY_CUT).max(1);
        let one_by_one = std::iter::once((format!("`{name}` byte by byte"), single));
        let in_two = (1..answer.body.len())
            .step_by(step)
            .map(|cut| (format!("`{name}` cut at byte {cut}"), vec![cut]));
        for (at, cuts) in one_by_one.chain(in_two) {
            let found = decode(bench, info, &answer, &memo, &cuts).await.map(joined);
            let went = match found {
                Ok(found) if found == whole => Ok(()),
                Ok(found) => Err(format!("it means {found:?} and whole {whole:?}")),
                Err(error) => Err(format!("it fails, and whole it does not: {error}")),
            };
            matter.case(at, went);
        }
    }
    for answer in corpus::long() {
        let whole = decode(bench, info, &answer, &memo, &[]).await;
        let went = answered(Bulk::Huge, whole.as_ref().err());
        traps.case(format!("the answer `{}`", answer.name), went);
    }

    report.add(traps);
    report.add(alike);
    report.add(matter);
    report.add(rules);
    report.add(classifies);
    if bench.options.asks(&[Property::WithinLimits]) {
        report.add(limits(bench, info, &requests[0].2).await?);
    }
    let body = speaks.map_or_else(Vec::new, |answer| answer.body);
    let make = |script: &Script| {
        let mut cast = Cast::new(&bench.runtime, info, script.clone());
        cast.answer.clone_from(&body);
        cast
    };
    let scenes = [Scene::new("one question", Script::default())];
    for finding in cuts::check(bench, &scenes, &make).await? {
        report.add(finding);
    }
    Ok(())
}

/// What a decoder makes of an answer that is cut at these places.
async fn decode(
    bench: &Bench,
    info: &PluginInfo,
    answer: &Answer,
    memo: &[u8],
    cuts: &[usize],
) -> Result<Vec<ModelEvent>, GuestError> {
    let head = answer.head.clone();
    let mut decoder = bench
        .runtime
        .decoder(&info.digest, head, memo.to_vec())
        .await?;
    let mut events = Vec::new();
    let mut from = 0;
    for &to in cuts.iter().chain([&answer.body.len()]) {
        // The host feeds at most so much at once.
        for piece in answer.body[from..to].chunks(64 << 10) {
            events.extend(decoder.feed(piece.to_vec()).await?);
            if events.iter().any(is_end) {
                return Ok(events);
            }
        }
        from = to;
    }
    events.extend(decoder.finish().await?);
    Ok(events)
}

fn is_end(event: &ModelEvent) -> bool {
    matches!(event, ModelEvent::Finished(_) | ModelEvent::Failed(_))
}

/// Joins deltas that follow each other and are of one kind, and keeps the last usage: what is left
/// does not depend on how the bytes came.
fn joined(events: Vec<ModelEvent>) -> Vec<ModelEvent> {
    let mut all: Vec<ModelEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(ModelEvent::TextDelta(text)), ModelEvent::TextDelta(more))
            | (Some(ModelEvent::ReasoningDelta(text)), ModelEvent::ReasoningDelta(more)) => {
                text.push_str(&more);
            }
            (
                Some(ModelEvent::ToolCallDelta { id, arguments }),
                ModelEvent::ToolCallDelta {
                    id: same,
                    arguments: more,
                },
            ) if *id == same => arguments.push_str(&more),
            (Some(ModelEvent::Usage(usage)), ModelEvent::Usage(newer)) => *usage = newer,
            (_, event) => all.push(event),
        }
    }
    all
}

/// The rules that the contract has for the events of one answer.
fn keep_rules(events: &Vec<ModelEvent>) -> Result<(), String> {
    let mut open: BTreeMap<&str, bool> = BTreeMap::new();
    let mut ended = false;
    for event in events {
        if ended {
            return Err(format!("after its end comes {event:?}"));
        }
        match event {
            ModelEvent::ToolCallStart { id, .. } => {
                if open.insert(id, true).is_some() {
                    return Err(format!("the call `{id}` begins twice"));
                }
            }
            ModelEvent::ToolCallDelta { id, .. } if open.get(id.as_str()) != Some(&true) => {
                return Err(format!("the call `{id}` goes on and is not open"));
            }
            ModelEvent::ToolCallEnd { id } => {
                if open.insert(id, false) != Some(true) {
                    return Err(format!("the call `{id}` ends and is not open"));
                }
            }
            event => ended = is_end(event),
        }
    }
    let finished = matches!(events.last(), Some(ModelEvent::Finished(_)));
    match open.iter().find(|(_, is_open)| **is_open) {
        Some((id, _)) if finished => Err(format!("it finishes and the call `{id}` is open")),
        _ => Ok(()),
    }
}

/// Under limits that leave it nothing, it must fail by their names.
async fn limits(
    bench: &Bench,
    info: &PluginInfo,
    request: &ModelRequest,
) -> Result<Finding, Error> {
    let mut finding = Finding::new(Property::WithinLimits);
    let mut memory = Limits::default();
    memory.provider.encode.memory_bytes = 64 << 10;
    memory.provider.decode.memory_bytes = 64 << 10;
    let mut output = Limits::default();
    output.provider.exchange_bytes = 1;
    output.provider.event_bytes = 1;
    output.provider.events_bytes = 1;
    let mut cpu = Limits::default();
    cpu.provider.encode.cpu = std::time::Duration::ZERO;
    cpu.provider.decode.cpu = std::time::Duration::ZERO;
    for (name, limits) in [
        ("64 KiB of memory", memory),
        ("1 byte of output", output),
        ("no CPU time", cpu),
    ] {
        let runtime = bench.another(limits, Workspace::None)?;
        let encoded = runtime.encode(&info.digest, request.clone()).await;
        finding.case(
            format!("encode with {name}"),
            answered(Bulk::Huge, encoded.as_ref().err()),
        );
        for Answer {
            name: of,
            head,
            body,
        } in corpus::answers(&bench.options.answers)
        {
            let went = async {
                let mut decoder = runtime.decoder(&info.digest, head, Vec::new()).await?;
                let events = decoder.feed(body).await?;
                if !events.iter().any(is_end) {
                    decoder.finish().await?;
                }
                Ok(())
            };
            let went: Result<(), GuestError> = went.await;
            finding.case(
                format!("the answer `{of}` with {name}"),
                answered(Bulk::Huge, went.as_ref().err()),
            );
        }
    }
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use mainstay_core::model::FinishReason;

    use super::*;

    #[test]
    fn rules_of_an_answer_are_told_apart() {
        let start = |id: &str| ModelEvent::ToolCallStart {
            id: id.to_owned(),
            tool: "t".to_owned(),
        };
        let end = |id: &str| ModelEvent::ToolCallEnd { id: id.to_owned() };
        let stop = || ModelEvent::Finished(FinishReason::Stop);
        let text = || ModelEvent::TextDelta("a".to_owned());
        for (events, words) in [
            (vec![start("1"), text(), end("1"), stop()], None),
            (vec![text()], None),
            (vec![stop(), text()], Some("after its end")),
            (vec![start("1"), start("1")], Some("begins twice")),
            (vec![end("1")], Some("is not open")),
            (vec![start("1"), stop()], Some("`1` is open")),
        ] {
            let found = keep_rules(&events);
            match words {
                None => assert_eq!(found, Ok(())),
                Some(words) => assert!(found.unwrap_err().contains(words), "{events:?}"),
            }
        }
    }
}
