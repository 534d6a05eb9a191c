//! What every store promises, as one suite. A store supplies a factory of [`Harness`]es and lists the
//! cases with [`conformance!`]; the names are those of the scenarios.

mod claim;
mod differential;
mod foreign;
mod harness;
mod inbox;
mod log;
mod nodes;
mod plan;
mod recovery;
mod scan;
mod things;
mod told;

pub use claim::*;
pub use differential::{Tally, store_2};
pub use foreign::log_20;
pub use harness::{Harness, check_invariants};
pub use inbox::*;
pub use log::*;
pub use nodes::*;
pub use recovery::*;
pub use scan::*;
pub use things::*;
pub use told::*;

/// One test per case, each with a fresh harness of the given async function; with `if found`, of one
/// that gives none where what it needs is not installed, and has said so.
#[macro_export]
macro_rules! conformance {
    ($open:path) => { $crate::conformance! { @all always $open } };
    ($open:path, if found) => { $crate::conformance! { @all found $open } };
    (@all $when:ident $open:path) => {
        $crate::conformance! { @each $when $open;
            store_1_watchers_are_told_after_the_commit
            edit_1_twenty_creations_at_once_make_one_session
            log_1 log_2 log_3 log_5 log_6 log_8 log_13
            claim_1 claim_2 claim_3 claim_4 claim_5 claim_9 claim_13 claim_14 claim_15 claim_20 claim_21
            recov_1 recov_2 recov_4 recov_5 recov_6 recov_7 recov_8 recov_10 recov_11 recov_13 recov_15
            recov_21 recov_22 recov_23 recov_24
            inbox_2 inbox_2_an_admission_that_wakes_others_names_its_own_seq
            inbox_2_a_retry_of_what_an_interrupt_held_back_is_no_second
            compact_5_the_first_answers_for_the_second_for_ever
            compact_5_a_cancelled_one_takes_along_whom_it_answers_for
            inbox_3 inbox_9 inbox_11 inbox_12 inbox_13 inbox_16 interrupt_clears_what_is_pending_then
            tool_6 items_come_in_both_orders sessions_come_in_pages a_scan_lists_what_is_due
            a_scan_lists_timers_that_are_due a_scan_lists_what_is_owed
            node_7_a_row_per_process_start a_node_reads_that_it_is_to_drain
            nodes_that_ended_are_forgotten api_11_how_much_waits_is_told
            a_scan_is_told_how_many_places_there_are
            a_session_is_deleted_whole a_title_has_a_bound plugins_and_blobs_are_kept
            the_clock_never_goes_back
        }
    };
    (@each $when:ident $open:path; $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                $crate::conformance! { @run $when $open; $case }
            }
        )*
    };
    (@run always $open:path; $case:ident) => { $crate::$case($open().await).await };
    (@run found $open:path; $case:ident) => {
        if let Some(h) = $open().await {
            $crate::$case(h).await;
        }
    };
}
