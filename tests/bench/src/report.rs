//! Figures as people compare them: the middle of some rounds, how far apart they lay, and tables that
//! can be put into a document as they are.

use std::time::Duration;

/// The value that so much of all values do not exceed, by nearest rank. Zero for none.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// The median, and behind it the least and the greatest.
#[must_use]
pub fn spread(values: &[f64], digits: usize) -> String {
    format!(
        "{:.digits$} ({:.digits$}–{:.digits$})",
        quantile(values, 0.5),
        quantile(values, 0.0),
        quantile(values, 1.0),
    )
}

/// Durations in milliseconds.
#[must_use]
pub fn millis(durations: &[Duration]) -> Vec<f64> {
    durations
        .iter()
        .map(|duration| duration.as_secs_f64() * 1e3)
        .collect()
}

/// Processor time that this process has used, all threads together; zero where the system does not
/// tell. To the hundredth of a second.
#[must_use]
pub fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may hold spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Memory of this process that is in use now, in bytes; zero where the system does not tell.
#[must_use]
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1);
    pages
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * 4096
}

/// A Markdown table, printed row by row as its figures come in.
pub struct Table {
    columns: usize,
}

impl Table {
    /// Prints the head. The first column is text, the others are figures.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        println!("\n| {} |", columns.join(" | "));
        println!("|---|{}", "---:|".repeat(columns.len() - 1));
        Self {
            columns: columns.len(),
        }
    }

    /// Prints a row.
    ///
    /// # Panics
    /// It has more or fewer cells than the head.
    pub fn row(&self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns, "a cell for each column");
        println!("| {} |", cells.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert_eq!(quantile(&values, 0.5), 2.0);
        assert_eq!(quantile(&values, 0.99), 4.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_processor_time_of_work_is_counted() {
        let (before, deadline) = (processor_time(), std::time::Instant::now() + WAIT);
        while processor_time() == before {
            assert!(std::time::Instant::now() < deadline, "it stands still");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_taken_is_resident() {
        const BYTES: usize = 64 << 20;
        let before = resident();
        let taken = std::hint::black_box(vec![1_u8; BYTES]);
        assert!(resident() >= before + BYTES as u64 / 2);
        drop(taken);
    }

    #[cfg(target_os = "linux")]
    const WAIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_spread_names_the_middle_first() {
        assert_eq!(spread(&[3.0, 1.0, 2.0], 1), "2.0 (1.0–3.0)");
    }
}
