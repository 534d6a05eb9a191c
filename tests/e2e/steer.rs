//! Sessions that are steered from outside: waits, approvals, signals, timers, children, cancels,
//! interrupts, edits of a history, policies and take-overs, over HTTP and from the command line, with
//! the real binary and a runner that follows plans. Every answer is held against the OpenAPI document.

mod support;

mod steer {
    mod access;
    mod chat;
    mod commands;
    mod contract;
    mod edits;
    mod policies;
    mod waits;
    mod world;
}
