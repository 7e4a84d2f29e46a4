//! When the tokens of a plan are ready, and when their readers get them.

use anyhow::Result;
use kv_cache::placement::{BigRational, Deposit, Model, Placement, Ratio, Request, evaluate};
use serde::Serialize;

use super::in_full;
use super::input::Task;
use crate::output::{counted, say};

/// A token of a request. Times are in layer times from the beginning of the first step, exact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Token {
    /// The request, counted from 1.
    request: usize,
    /// The decode step that computes it, counted from 1.
    step: u32,
    #[serde(serialize_with = "number")]
    ready: BigRational,
    #[serde(serialize_with = "number")]
    released: BigRational,
    /// PLAN-D2.
    late: bool,
    /// Tokens that are ready and not released when this one is ready, with this one.
    deposit_tokens: usize,
}

fn number<S: serde::Serializer>(
    ratio: &BigRational,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    in_full(&Some(ratio.clone()), serializer)
}

/// The tokens of a number of decode steps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Released {
    tokens: Vec<Token>,
    /// Decode steps that were asked for.
    #[serde(skip)]
    wanted_steps: u32,
    /// Decode steps before the requests grow out of the memory.
    token_steps: u32,
}

impl Released {
    /// The tokens of `steps` decode steps with these placements, of all requests with an SLO; `None`
    /// when no request has one. Fewer steps where the requests have grown out of the memory before.
    pub(super) fn of(
        task: &Task,
        placements: &[Placement],
        model: Model,
        steps: u32,
    ) -> Result<Option<Self>> {
        let (tokens, token_steps) = tokens(task, placements, model, steps)?;
        let released = Self { tokens, wanted_steps: steps, token_steps };
        let has_slo = task.batch.requests().iter().any(|it| it.slo_layer_times.is_some());
        Ok(has_slo.then_some(released))
    }

    pub(super) fn print(&self) {
        let times = |of: fn(&Token) -> &BigRational| {
            self.tokens.iter().map(|token| of(token).to_string()).collect::<Vec<_>>()
        };
        let (ready, released) = (times(|token| &token.ready), times(|token| &token.released));
        let widest = ready.iter().chain(&released).map(String::len).max().unwrap_or(0).max(12);
        say!("");
        say!("request   step {:>widest$} {:>widest$}  deposit", "ready", "released");
        for (token, (ready, released)) in self.tokens.iter().zip(ready.iter().zip(&released)) {
            let Token { request, step, late, deposit_tokens, .. } = token;
            let late = if *late { "  late" } else { "" };
            say!(
                "{request:>7} {step:>6} {ready:>widest$} {released:>widest$} {deposit_tokens:>8}{late}"
            );
        }
        let Self { wanted_steps, token_steps, .. } = self;
        if token_steps < wanted_steps {
            say!(
                "{} of {wanted_steps} are shown: then the requests have grown out of the memory",
                counted((*token_steps).into(), "step")
            );
        }
        say!("");
        say!(
            "Times are in layer times. A token is released when it is ready, but not sooner than one"
        );
        say!("slo_layer_times after the token before it. Tokens between the two are deposited.");
    }
}

/// The tokens, and of how many steps.
fn tokens(
    task: &Task,
    placements: &[Placement],
    model: Model,
    steps: u32,
) -> Result<(Vec<Token>, u32)> {
    let mut computed_steps = 0;
    let mut ready = Vec::new();
    let mut now = BigRational::from_integer(0.into());
    let link = big(task.batch.link());
    for step in 1..=steps {
        let grown = task.horizon.grown(&task.batch, step)?;
        let cost = evaluate(&grown, placements, model)?;
        if !cost.feasible {
            break;
        }
        let computing = BigRational::from_integer(task.batch.layers().into());
        now += cost.stall_blocks / &link + computing;
        ready.push(now.clone());
        computed_steps = step;
    }
    let requests = task.batch.requests().iter().enumerate();
    let paced: Vec<_> = requests
        .filter_map(|(number, request)| Some((number + 1, request, request.slo_layer_times?)))
        .collect();
    let of_request = |&(number, request, slo): &(usize, &Request, Ratio<u64>)| {
        released(number, request, big(slo), &ready)
    };
    Ok((paced.iter().flat_map(of_request).collect(), computed_steps))
}

/// The tokens of a request, ready at these times.
fn released(
    request: usize,
    given: &Request,
    slo: BigRational,
    ready: &[BigRational],
) -> Vec<Token> {
    let zero = BigRational::from_integer(0.into());
    let mut deposit = Deposit::new(slo);
    // The last token was released at the beginning; deposited tokens follow at the promised rate.
    deposit.put(zero.clone());
    deposit.release(&zero);
    for _ in 0..given.deposit_tokens {
        deposit.put(zero.clone());
    }
    let mut deposited = Vec::with_capacity(ready.len());
    let mut releases = Vec::with_capacity(ready.len() + deposit.tokens());
    for moment in ready {
        releases.extend(std::iter::from_fn(|| deposit.release(moment)));
        deposit.put(moment.clone());
        deposited.push(deposit.tokens());
    }
    while let Some(at) = deposit.next_release() {
        releases.extend(deposit.release(&at));
    }
    let own = releases.into_iter().skip(given.deposit_tokens as usize);
    let steps = (1..).zip(ready).zip(deposited).zip(own);
    let token = |(((step, ready), deposit_tokens), release): (((u32, &BigRational), _), _)| {
        let kv_cache::placement::Released { at, late } = release;
        Token { request, step, ready: ready.clone(), released: at, late, deposit_tokens }
    };
    steps.map(token).collect()
}

fn big(ratio: Ratio<u64>) -> BigRational {
    BigRational::new((*ratio.numer()).into(), (*ratio.denom()).into())
}
