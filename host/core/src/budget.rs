//! What a session and a turn may use: how much is left when a runner is asked, whether that is enough
//! for what it decides, and what a model call cost. Steps are counted by the turn itself; tokens and
//! cost are sums over the session; time is that of the turn, by the times of its events.

use crate::config::Agent;
use crate::history::tokens;
use crate::id::{Millis, Seq};
use crate::model::{Content, Usage};
use crate::node::Shared;
use crate::plugin::{Action, Budget, Price, Summary};
use crate::tail::{Step, Tail, Turn};

/// What is left of everything but time.
pub(crate) fn left(agent: &Agent, tail: &Tail, turn: &Turn) -> Budget {
    let used = &tail.session.usage;
    let tokens = used.input_tokens.saturating_add(used.output_tokens);
    Budget {
        steps: turn.steps_left,
        tokens: agent.tokens.map(|most| most.saturating_sub(tokens)),
        cost: agent.cost.map(|most| most.saturating_sub(used.cost)),
        time_ms: None,
    }
}

/// What is left of the turn's time, in milliseconds, where it has a limit.
///
/// # Errors
/// The turn's first event cannot be read.
pub(crate) async fn time_left(
    shared: &Shared,
    agent: &Agent,
    tail: &Tail,
) -> Result<Option<u64>, String> {
    let (Some(most), Some(turn)) = (agent.time_ms, &tail.session.turn) else {
        return Ok(None);
    };
    let began = began(shared, tail, turn.began).await?;
    let took = tail.session.updated_at.saturating_sub(began);
    Ok(Some(most.saturating_sub(took)))
}

/// When a turn began. One that is not committed yet begins now.
async fn began(shared: &Shared, tail: &Tail, seq: Seq) -> Result<Millis, String> {
    let read = shared.store.events(tail.session.id, seq - 1, 1).await;
    let read = read.map_err(|error| crate::chain(&error))?;
    let first = read.and_then(|(events, _)| events.into_iter().next());
    Ok(first
        .filter(|event| event.seq == seq)
        .map_or(tail.session.updated_at, |event| event.at))
}

/// Why a decision goes past what is left, if it does. `done` and `fail` are free.
pub(crate) fn exceeded(left: &Budget, action: &Action) -> Option<&'static str> {
    let asks_model = match action {
        Action::Done | Action::Fail(_) => return None,
        Action::CallModel(_) => true,
        Action::Compact(compact) => matches!(compact.summary, Summary::Model(_)),
        _ => false,
    };
    if left.time_ms == Some(0) {
        return Some(OUT_OF_TIME);
    }
    if asks_model && left.tokens == Some(0) {
        return Some("the session's budget of tokens is used up");
    }
    if asks_model && left.cost == Some(0) {
        return Some("the session's budget of cost is used up");
    }
    None
}

/// Why a turn ends whose time is over.
pub(crate) const OUT_OF_TIME: &str = "the turn's budget of time is used up";

/// What an answer used that was cut off: what its server told of it, and estimates of what it did not
/// tell. `asked` is the size of the request in bytes, where it is known. `None` for an answer that had not
/// begun, of which nothing is told: most servers charge nothing for it.
pub(crate) fn estimated(told: Option<Usage>, asked: Option<u64>, step: &Step) -> Option<Usage> {
    let came: usize = step.content.iter().map(Content::text_bytes).sum();
    let mut usage = told.or((came > 0).then(Usage::default))?;
    let guess = |told: &mut Option<u32>, bytes: u64| {
        if told.is_none() && bytes > 0 {
            *told = Some(u32::try_from(tokens(bytes).max(1)).unwrap_or(u32::MAX));
            return true;
        }
        false
    };
    let input = guess(&mut usage.input_tokens, asked.unwrap_or(0));
    let output = guess(&mut usage.output_tokens, came as u64);
    usage.estimated |= input | output;
    Some(usage)
}

/// What a model call used with what it cost, in millionths of a US dollar: as the server says, else by
/// the model's price. A fraction counts as one.
pub(crate) fn priced(mut usage: Usage, price: Option<Price>) -> Usage {
    if usage.cost.is_none()
        && let Some(price) = price
    {
        usage.cost = cost(&usage, &price);
    }
    usage
}

fn cost(usage: &Usage, price: &Price) -> Option<u64> {
    if usage.input_tokens.is_none() && usage.output_tokens.is_none() {
        return None;
    }
    let count = |tokens: Option<u32>| u64::from(tokens.unwrap_or(0));
    let input = count(usage.input_tokens);
    // Shares of the input, whatever a server claims.
    let read = count(usage.cache_read_tokens).min(input);
    let written = count(usage.cache_write_tokens).min(input - read);
    let parts = [
        (input - read - written, price.input),
        (read, price.cache_read.unwrap_or(price.input)),
        (written, price.cache_write.unwrap_or(price.input)),
        (count(usage.output_tokens), price.output),
    ];
    // Below 2^66: u32 times u32, four times.
    let sum: u128 = parts
        .iter()
        .map(|(tokens, price)| u128::from(*tokens) * u128::from(*price))
        .sum();
    u64::try_from(sum.div_ceil(1_000_000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price {
        input: 3_000_000,
        output: 15_000_000,
        cache_read: Some(300_000),
        cache_write: None,
    };

    fn usage(input: u32, read: u32, output: u32) -> Usage {
        Usage {
            input_tokens: Some(input),
            cache_read_tokens: Some(read),
            output_tokens: Some(output),
            ..Usage::default()
        }
    }

    #[test]
    fn shares_of_the_input_have_prices_of_their_own() {
        assert_eq!(priced(usage(1000, 0, 100), Some(PRICE)).cost, Some(4_500));
        assert_eq!(priced(usage(1000, 900, 100), Some(PRICE)).cost, Some(2_070));
        assert_eq!(priced(usage(1, 1, 0), Some(PRICE)).cost, Some(1));
    }

    #[test]
    fn what_the_server_says_counts_and_nothing_is_made_up() {
        let said = Usage {
            cost: Some(7),
            ..usage(1000, 0, 100)
        };
        assert_eq!(priced(said, Some(PRICE)).cost, Some(7));
        assert_eq!(priced(usage(1000, 0, 100), None).cost, None);
        assert_eq!(priced(Usage::default(), Some(PRICE)).cost, None);
    }

    #[test]
    fn claims_without_bounds_do_not_overflow() {
        let dear = Price {
            input: u32::MAX,
            output: u32::MAX,
            cache_read: None,
            cache_write: None,
        };
        let claimed = usage(u32::MAX, u32::MAX, u32::MAX);
        assert!(priced(claimed, Some(dear)).cost.is_some());
    }
}
