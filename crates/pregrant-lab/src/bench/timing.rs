//! The options for how long each row is measured, and how often.

use super::Result;
use super::output::Run;

/// Arguments about time, with defaults of each bench.
#[derive(Debug, clap::Args)]
pub struct Timing {
    /// Seconds of each row and repeat
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    pub seconds: f64,
    /// Repeats of each row, interleaved
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
}

/// The arguments of a bench of bursts.
#[derive(Debug, clap::Args)]
pub struct Bursts {
    /// Frames in a burst at most
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub burst: u32,
    #[command(flatten)]
    pub timing: Timing,
}

/// Parses a number of seconds that a row can last.
pub fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("a number of seconds from 0.01 to 3600, for example 0.5".into()),
    }
}

/// Measures rows in turns: all of them in each repeat, so that a slow phase of the machine affects
/// all alike.
pub fn in_turns<R>(
    run: &mut Run,
    repeats: u32,
    rows: &mut [R],
    words: impl Fn(&R) -> String,
    mut measure: impl FnMut(&mut Run, &mut R) -> Result<()>,
) -> Result<()> {
    for repeat in 1..=repeats {
        for row in &mut *rows {
            run.progress.show(format_args!("repeat {repeat} of {repeats}: {}", words(row)));
            measure(run, row)?;
        }
    }
    Ok(())
}

/// Returns a remark if there are few repeats.
pub fn few(repeats: u32) -> &'static str {
    match repeats {
        0..5 => "So few repeats scatter, the range says how much: --repeats 9 scatters less.\n",
        _ => "",
    }
}
