//! A scene played once whole, then killed, taken over and interrupted at each of its commits.

use mainstay_core::event::TurnOutcome;

use crate::Error;
use crate::bench::Bench;
use crate::cast::{Cast, Script};
use crate::report::{Finding, Property};
use crate::stage::{self, At, Blow, Played, Scene};

/// Plays all scenes with every cut.
pub(crate) async fn check(
    bench: &Bench,
    scenes: &[Scene],
    cast: &(dyn Fn(&Script) -> Cast + Sync),
) -> Result<Vec<Finding>, Error> {
    let mut crashes = Finding::new(Property::SurvivesCrashes);
    let mut stale = Finding::new(Property::SurvivesStaleClaims);
    let mut interrupts = Finding::new(Property::SurvivesInterrupts);
    let asked = |blow| bench.options.asks(&[property(blow)]);
    let blows = [
        Blow::KillBefore,
        Blow::KillAfter,
        Blow::TakeOver,
        Blow::Interrupt,
    ];
    let blows: Vec<Blow> = blows.into_iter().filter(|blow| asked(*blow)).collect();
    for scene in scenes {
        if blows.is_empty() {
            break;
        }
        let whole = match stage::play(bench, cast(&scene.script), scene, None).await? {
            Ok(whole) => whole,
            Err(trouble) => {
                crashes.case(format!("{}, uncut", scene.name), Err(trouble));
                continue;
            }
        };
        for n in 1..=whole.commits {
            for &blow in &blows {
                let at = At(blow, n);
                let played = stage::play(bench, cast(&scene.script), scene, Some(at)).await?;
                // A late commit may fall together with another when what runs side by side ends at once.
                if matches!(&played, Ok(played) if !played.reached) {
                    continue;
                }
                let went = played.and_then(|played| judge(scene, blow, &whole, &played));
                let finding = match property(blow) {
                    Property::SurvivesCrashes => &mut crashes,
                    Property::SurvivesStaleClaims => &mut stale,
                    _ => &mut interrupts,
                };
                finding.case(format!("{}, {at} of {}", scene.name, whole.commits), went);
            }
        }
    }
    Ok(vec![crashes, stale, interrupts])
}

fn property(blow: Blow) -> Property {
    match blow {
        Blow::KillBefore | Blow::KillAfter => Property::SurvivesCrashes,
        Blow::TakeOver => Property::SurvivesStaleClaims,
        Blow::Interrupt => Property::SurvivesInterrupts,
    }
}

fn judge(scene: &Scene, blow: Blow, whole: &Played, played: &Played) -> Result<(), String> {
    let (wanted, found) = (whole.turns.last(), played.turns.last());
    if wanted != found {
        return Err(format!(
            "the last turn {}; uncut, it {}",
            ended(found),
            ended(wanted)
        ));
    }
    if blow == Blow::Interrupt {
        return Ok(());
    }
    let (wanted, found) = (stage::lines(&whole.items), stage::lines(&played.items));
    if scene.acts {
        // A call that acts once may have a verdict in place of its result, and is told of.
        if wanted.last() != found.last() {
            return Err(format!(
                "the history ends with {}; uncut, with {}",
                last(&found),
                last(&wanted)
            ));
        }
    } else if wanted != found {
        let at = wanted
            .iter()
            .zip(&found)
            .take_while(|(a, b)| a == b)
            .count();
        let item = |lines: &[String]| lines.get(at).cloned().unwrap_or("nothing".to_owned());
        return Err(format!(
            "item {} of the history is {}; uncut, it is {}",
            at + 1,
            item(&found),
            item(&wanted)
        ));
    }
    match stage::difference(&whole.files, &played.files) {
        Some(difference) => Err(format!(
            "the workspace differs from that of the session that was not cut: {difference}"
        )),
        None => Ok(()),
    }
}

fn last(lines: &[String]) -> &str {
    lines.last().map_or("nothing", String::as_str)
}

fn ended(outcome: Option<&TurnOutcome>) -> String {
    match outcome {
        None => "has not ended".to_owned(),
        Some(TurnOutcome::Done) => "was done".to_owned(),
        Some(TurnOutcome::Failed { error }) => format!("failed: {error}"),
        Some(TurnOutcome::Interrupted) => "was interrupted".to_owned(),
    }
}
