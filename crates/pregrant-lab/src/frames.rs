//! `pregrant-lab frames`: a check of any network interface: numbered, checksummed datagrams, each
//! acknowledged.
//!
//! ```text
//!   --to IP: Sender --data 0, 1, 2 ...--> Receiver :--serve
//!                   <--acks, counters----
//!   at most a window of them without an acknowledgement; one that no one acknowledged is sent again, and counted
//! ```
//! Nothing but UDP sockets: what is between (vifs, bridges, switches) may drop, and then frames
//! are sent again; it may not lose for good, and never change a byte. A datagram that came damaged
//! is counted and not acknowledged. Datagrams that the kernel itself finds damaged (a checksum of
//! UDP or IP) never come here, and show as sent again.
//!
//! What others on the network may do: send anything; each address has counters of its own, and what
//! is no datagram of ours counts as damaged. At most `RUNS_MAX` (`receiver.rs`) senders are served
//! at a time.

mod datagram;
mod receiver;
mod sender;

use clap::Args;
use std::error::Error;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PORT: u16 = 5002;

/// Arguments of `pregrant-lab frames`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant-lab frames --serve
  pregrant-lab frames --to 10.9.0.2 --count 100000
  pregrant-lab frames --to fd09::2 --count 100000 --size 64..9000

At the end it prints what was sent, received, damaged, out of order and sent again, and fails when anything was damaged
or lost. Sizes are bytes of UDP payload: with an MTU of 1500 what is longer than 1472 travels in fragments.")]
pub struct FramesArgs {
    #[command(flatten)]
    end: End,
    /// UDP port
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Number of datagrams
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "serve")]
    count: u64,
    /// Payload bytes: a number, or a range from..to with uniformly distributed lengths
    #[arg(long, value_name = "N[..N]", default_value = "64..1472", value_parser = sizes, conflicts_with = "serve")]
    size: RangeInclusive<u16>,
    /// Maximum number of unacknowledged datagrams
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096), conflicts_with = "serve")]
    window: u16,
    /// Seconds without an answer after which it gives up
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600), conflicts_with = "serve")]
    patience: u64,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct End {
    /// Receive and acknowledge, until a signal
    #[arg(long)]
    serve: bool,
    /// Address of the receiver
    #[arg(long, value_name = "IP")]
    to: Option<IpAddr>,
}

/// Parses sizes, such as `1400` or `64..9000`.
fn sizes(text: &str) -> std::result::Result<RangeInclusive<u16>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let range = from.parse().ok().zip(to.parse().ok()).map(|(from, to): (u16, u16)| from..=to);
    let legal = |r: &RangeInclusive<u16>| {
        !r.is_empty() && *r.start() >= datagram::LEAST as u16 && *r.end() <= datagram::MOST as u16
    };
    range.filter(legal).ok_or_else(|| {
        format!("bytes, or two numbers with .. between them, {} to {}", datagram::LEAST, datagram::MOST)
    })
}

/// Runs `pregrant-lab frames`.
pub fn run(args: FramesArgs) -> Result<()> {
    match args.end.to {
        None => receiver::serve(args.port),
        Some(to) => sender::send(&sender::Plan {
            to: (to, args.port).into(),
            count: args.count,
            size: args.size,
            window: args.window.into(),
            patience: Duration::from_secs(args.patience),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_a_number_or_a_range() {
        assert_eq!([sizes("64"), sizes("64..9000")], [Ok(64..=64), Ok(64..=9000)]);
        for bad in ["", "1", "9000..64", "64..", "64...100", "64..65536"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }
}
