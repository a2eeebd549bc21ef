//! `pregrant-lab front`: a guest with a TCP/IP stack of its own, to make traffic with: on a
//! loopback machine, or in a guest of a real Xen.
//!
//! ```text
//!   station (TCP/IP stack) -- Frontend -- rings -- the backend        with --tap as `pregrant front`
//!      |-- answers pings, always
//!      '-- --ping, --serve, --send
//! ```
//! The guest does not end when its backend does: it waits, and goes on with the next.

use clap::Args;
use pregrant::DomId;
use pregrant::net::headers::MacAddr;
use pregrant::platform::{Clock, Platform};
use pregrant::xenstore::Transport;
use pregrant_cli::amount::amount;
use pregrant_cli::front::frame_hook::FrameHook;
use pregrant_cli::front::{Joined, MTU, Tap, VifArgs, VifUser, close, serve_vif};
use pregrant_cli::screen;
use pregrant_cli::stop::Stop;
use pregrant_cli::usage::Given;
use pregrant_host::wake::WakeOn;
use pregrant_testbed::station::Station;
use pregrant_testbed::station::guest_stack::{GuestStack, StackConfig};
use pregrant_testbed::station::ping::Pinger;
use pregrant_testbed::station::transfer::{Progress, TransferClient, TransferError, TransferServer};
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant-lab front`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant-lab front --ping 10.9.0.1 --address 10.9.0.2
  pregrant-lab front --loopback /tmp/xen --domain 6 --serve
  pregrant-lab front --loopback /tmp/xen --domain 5 --ping 10.0.0.6
  pregrant-lab front --loopback /tmp/xen --domain 5 --send 10.0.0.6 --bytes 2G

On Xen it serves a vif of the domain in which it runs, in place of the kernel's netfront. Without --tap, --ping, --serve
and --send it is a station that answers pings. With --tap it is `pregrant front`. Ctrl-C closes the vif and ends the guest.
The backend may end, be killed and be started again meanwhile: the guest waits for the next one.")]
pub struct FrontArgs {
    #[command(flatten)]
    task: Task,
    /// The station's address; without it 10.0.x.y, where x and y are the domain's number in bytes
    #[arg(long, value_name = "IP", conflicts_with = "tap")]
    address: Option<Ipv4Addr>,
    /// With --ping: end after this many requests
    #[arg(long, value_name = "N", requires = "ping", conflicts_with_all = ["tap", "serve", "send"])]
    count: Option<u64>,
    /// With --ping: seconds between two requests
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval, requires = "ping", conflicts_with_all = ["tap", "serve", "send"])]
    interval: f64,
    /// With --send: how many bytes; K, M and G are powers of 1024
    #[arg(long, value_name = "N", default_value = "256M", value_parser = amount, requires = "send", conflicts_with_all = ["tap", "serve", "ping"])]
    bytes: u64,
    #[command(flatten)]
    vif: VifArgs,
}

#[derive(Args, Debug)]
#[group(multiple = false)]
struct Task {
    /// Give the guest's kernel a network interface of this name
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// Send echo requests
    #[arg(long, value_name = "IP", conflicts_with_all = OF_TAPS)]
    ping: Option<Ipv4Addr>,
    /// Receive transfers, until a signal
    #[arg(long, conflicts_with_all = OF_TAPS)]
    serve: bool,
    /// Transfer bytes to a guest that serves
    #[arg(long, value_name = "IP", conflicts_with_all = OF_TAPS)]
    send: Option<Ipv4Addr>,
}

/// Options of a vif that need a network interface.
const OF_TAPS: [&str; 3] = ["queues", "rx", "own_buffers"];

fn interval(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds, 0.001 to 3600".into()),
    }
}

/// TCP port on which transfers are served.
const PORT: u16 = 5001;
/// The seed of the bytes that are transferred.
const SEED: u64 = 0x5eed;
/// Largest number of transfers that are served at the same time.
const TRANSFERS_MAX: usize = 8;
/// The time that the other end may need to answer at all.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// The time that a transfer may make no progress while there is a backend.
const MOVE_PATIENCE: Duration = Duration::from_secs(30);
/// The time that a connected client may be silent while there is a backend.
const SILENCE_MOST: Duration = Duration::from_secs(40);
/// The interval at which these three bounds are checked.
const PATIENCE_CHECK: Duration = Duration::from_secs(1);
/// The time that an end stays after its connection has closed, so that late acknowledgements are
/// sent.
const LINGER: Duration = Duration::from_millis(50);

/// Runs `pregrant-lab front`.
///
/// # Errors
/// The vif or the traffic failed.
pub fn run(args: &FrontArgs, given: &Given) -> Result<()> {
    match &args.task.tap {
        Some(name) => serve_vif(&args.vif, given, &Tap { name, args: &args.vif }),
        None => serve_vif(&args.vif, given, args),
    }
}

impl FrontArgs {
    fn address(&self, domid: DomId) -> Ipv4Addr {
        let [hi, lo] = domid.0.to_be_bytes();
        self.address.unwrap_or(Ipv4Addr::new(10, 0, hi, lo))
    }
}

impl VifUser for FrontArgs {
    /// Returns 1, since the station uses one queue.
    fn queues(&self) -> u32 {
        1
    }

    fn run<P: Platform, T: Transport>(&self, joined: Joined<P, T>, stop: &Stop) -> Result<()>
    where
        P::Events: WakeOn,
    {
        let (args, Joined { guest, hook, mac }) = (self, joined);
        let domid = guest.platform().domid();
        let address = args.address(domid);
        let now_ns = guest.platform().clock().now_ns();
        let mut config = StackConfig::new(MacAddr(mac), address);
        (config.prefix_len, config.mtu, config.seed) = (16, args.vif.mtu.unwrap_or(MTU) as usize, now_ns);
        let mut station = Station::hooked(guest, GuestStack::new(&config, now_ns), hook);
        station.set_mode(args.vif.mode);
        let _ = screen::print(format_args!("{domid}: address {address}"));
        let done = match (args.task.ping, args.task.send) {
            (Some(to), _) => ping(&mut station, to, args, stop),
            (_, Some(to)) => send(&mut station, to, args.bytes, stop),
            _ => serve(&mut station, args.task.serve, stop),
        };
        if let Some(line) = station.hook_line() {
            screen::print(line)?;
        }
        if let Some(exit) = station.hook().and_then(FrameHook::exit) {
            close(exit.guest())?;
        }
        close(station.guest())?;
        done
    }
}

/// The time after which an answer that has not arrived counts as lost.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Sends echo requests until a signal, or as many as were asked for.
fn ping<P: Platform, T: Transport>(
    station: &mut Station<P, T>,
    to: Ipv4Addr,
    args: &FrontArgs,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let interval_ns = (args.interval * 1e9) as u64;
    let domid = station.guest().platform().domid();
    let mut pinger = Pinger::new(station.stack(), to, domid.0);
    let mut next_ns = station.now_ns();
    let mut asked_ns = next_ns;
    let (mut least, mut most, mut sum) = (u64::MAX, 0, 0);
    let last_chance = LAST_CHANCE.as_nanos() as u64;
    let all_asked = |pinger: &Pinger| args.count.is_some_and(|n| pinger.sent >= n);
    while !stop.asked() {
        let now = station.now_ns();
        if all_asked(&pinger) && (!pinger.is_waiting() || now >= asked_ns + last_chance) {
            break;
        }
        let due = if all_asked(&pinger) { last_chance } else { next_ns.saturating_sub(now) };
        let mut answers = Vec::new();
        let live = station.is_live();
        station.turn::<Box<dyn Error>>(Duration::from_nanos(due), |stack, now| {
            // Without a backend nothing is asked: what waited would all come at once.
            if live && now >= next_ns && !all_asked(&pinger) && pinger.ask(stack, now) {
                next_ns = next_ns.max(now.saturating_sub(interval_ns)) + interval_ns;
                asked_ns = now;
            }
            while let Some(answer) = pinger.answer(stack, now) {
                answers.push(answer);
            }
            Ok(())
        })?;
        for answer in answers {
            (least, most, sum) = (least.min(answer.took_ns), most.max(answer.took_ns), sum + answer.took_ns);
            let ms = answer.took_ns as f64 / 1e6;
            screen::print(format_args!("answer from {to}: number {}, {ms:.3} ms", answer.seq))?;
        }
    }
    let under_way = pinger.under_way(station.now_ns(), last_chance);
    let lost = pinger.sent - pinger.answered - under_way;
    let mut text = format!("{} request(s), {} answer(s), {lost} lost", pinger.sent, pinger.answered);
    if under_way > 0 {
        text += &format!(", {under_way} under way");
    }
    if pinger.answered > 0 {
        let ms = |ns: u64| ns as f64 / 1e6;
        let mean = ms(sum) / pinger.answered as f64;
        text += &format!("; least {:.3}, mean {mean:.3}, most {:.3} ms", ms(least), ms(most));
    }
    screen::print(text)?;
    if pinger.answered == 0 && !stop.asked() {
        return Err(
            format!("{to} does not answer: is a guest with this address running, and a backend?").into()
        );
    }
    Ok(())
}

/// Sends the bytes of one transfer to `to`.
fn send<P: Platform, T: Transport>(
    station: &mut Station<P, T>,
    to: Ipv4Addr,
    bytes: u64,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let now = station.now_ns();
    let mut client = TransferClient::new(station.stack(), (to, PORT), bytes, SEED, now)?;
    let mut watch = Watch::new(now);
    let answered_by = Instant::now() + ANSWER_PATIENCE;
    let mut quiet_since: Option<Instant> = None;
    let mut standstill = Standstill { bytes: 0, since_ns: now };
    let mut progress = Progress::Waiting;
    let report = loop {
        // Once it is done, no one may come any more: whether all is quiet is checked without
        // being woken.
        let due = if matches!(progress, Progress::Done(_)) { LINGER } else { PATIENCE_CHECK };
        let came = station.turn::<Box<dyn Error>>(due, |stack, now| {
            progress = client.pump(stack, now).map_err(|e| no_server(e, to))?;
            Ok(())
        })?;
        watch.check(station.now_ns(), came, progress, bytes);
        if stop.asked() {
            watch.clear();
            return Err(format!(
                "interrupted by a signal before all {bytes} bytes were received; start the transfer again"
            )
            .into());
        }
        let (now, started) = (station.now_ns(), progress != Progress::Waiting);
        let through = client.acknowledged(station.stack());
        let stands = standstill.check(through, started && station.is_live(), now) > MOVE_PATIENCE;
        match progress {
            Progress::Moving(_) if stands => {
                watch.clear();
                return Err(format!(
                    "{to} is gone: nothing has moved for {} s, after {} bytes; is that guest still running? If so, start \
                     the transfer again",
                    MOVE_PATIENCE.as_secs(),
                    standstill.bytes
                )
                .into());
            }
            Progress::Waiting if Instant::now() > answered_by => {
                watch.clear();
                return Err(format!(
                    "{to} does not answer: is a guest with this address running, with --serve, and a backend?"
                )
                .into());
            }
            // It has confirmed all, and went without a good-bye.
            Progress::Done(report) if stands => break report,
            Progress::Done(report) => {
                let over = client.is_closed(station.stack()) && station.is_quiet() && came == 0;
                let since = *quiet_since.get_or_insert_with(Instant::now);
                if !over {
                    quiet_since = None;
                } else if since.elapsed() > LINGER {
                    break report;
                }
            }
            _ => {}
        }
    };
    watch.clear();
    screen::print(format_args!(
        "sent {} bytes to {to} in {:.2} s, {:.3} Gbit/s; sum {:016x}, which the receiver confirms; longest pause {:.1} ms",
        report.bytes,
        report.elapsed_ns as f64 / 1e9,
        report.bytes as f64 * 8.0 / report.elapsed_ns.max(1) as f64,
        report.sum,
        watch.longest_ns as f64 / 1e6
    ))?;
    Ok(())
}

fn no_server(e: TransferError, to: Ipv4Addr) -> Box<dyn Error> {
    match e {
        TransferError::Cut(0) => {
            format!(
                "{to} refuses the connection: start that guest with `pregrant-lab front --serve`; one that serves takes \
                 {TRANSFERS_MAX} transfers at a time"
            )
            .into()
        }
        other => other.into(),
    }
}

/// Answers pings, and serves transfers if that was asked for, until a signal.
fn serve<P: Platform, T: Transport>(station: &mut Station<P, T>, transfers: bool, stop: &Stop) -> Result<()>
where
    P::Events: WakeOn,
{
    let mut open: Vec<(TransferServer, Watch)> = Vec::new();
    let mut away_ns = station.now_ns();
    let mut refusing = false;
    while !stop.asked() {
        let now = station.now_ns();
        let listening = open.iter().any(|(_, watch)| !watch.began());
        let full = !listening && open.len() == TRANSFERS_MAX;
        if transfers && !listening && !full {
            open.push((TransferServer::new(station.stack(), PORT)?, Watch::new(now)));
        }
        if !station.is_live() {
            away_ns = now;
        }
        // After a time without a backend, first there is time for a sign of life.
        let counts = now.saturating_sub(away_ns) > SILENCE_MOST.as_nanos() as u64 / 2;
        open.iter().for_each(|(server, _)| server.limit_silence(station.stack(), SILENCE_MOST, counts));
        let mut steps = Vec::new();
        let due = if open.is_empty() { Duration::MAX } else { PATIENCE_CHECK };
        let came = station.turn::<Box<dyn Error>>(due, |stack, now| {
            steps.extend(open.iter_mut().map(|(server, _)| server.pump(stack, now)));
            Ok(())
        })?;
        if full && !refusing && came > 0 && station.requests(PORT) > 0 {
            log::warn!(
                "refusing a transfer: {TRANSFERS_MAX} are running; further refusals are not logged until one of them ends"
            );
            refusing = true;
        }
        refusing &= full;
        let now = station.now_ns();
        let mut at = 0;
        for step in steps {
            let (server, watch) = &mut open[at];
            let over = match step {
                Ok(progress @ Progress::Done(report)) => {
                    watch.check(now, came, progress, 0);
                    let over = server.is_closed(station.stack());
                    if over {
                        screen::print(format_args!(
                            "received {} bytes in {:.2} s; sum {:016x}; longest pause {:.1} ms",
                            report.bytes,
                            report.elapsed_ns as f64 / 1e9,
                            report.sum,
                            watch.longest_ns as f64 / 1e6
                        ))?;
                    }
                    over
                }
                Ok(progress) => {
                    watch.check(now, came, progress, 0);
                    false
                }
                Err(e) => {
                    log::warn!("receiving a transfer failed: {e}; start it again at its sender");
                    true
                }
            };
            if over {
                let (server, _) = open.remove(at);
                server.end(station.stack());
            } else {
                at += 1;
            }
        }
    }
    Ok(())
}

/// Measures for how long a transfer makes no progress.
struct Standstill {
    bytes: u64,
    since_ns: u64,
}

impl Standstill {
    /// Returns for how long `bytes` has not changed. Time in which the vif is not `live` (no
    /// backend, or no connection) does not count.
    fn check(&mut self, bytes: u64, live: bool, now_ns: u64) -> Duration {
        if bytes != self.bytes || !live {
            *self = Self { bytes, since_ns: now_ns };
        }
        Duration::from_nanos(now_ns.saturating_sub(self.since_ns))
    }
}

/// Watches a transfer for pauses, and prints a line of progress.
struct Watch {
    progress: screen::Progress,
    last_came_ns: Option<u64>,
    longest_ns: u64,
    shown: (u64, u64),
}

impl Watch {
    fn new(now_ns: u64) -> Self {
        Self { progress: screen::Progress::new(), last_came_ns: None, longest_ns: 0, shown: (now_ns, 0) }
    }

    fn began(&self) -> bool {
        self.last_came_ns.is_some()
    }

    /// Called after each turn, in which `came` frames arrived.
    fn check(&mut self, now_ns: u64, came: usize, progress: Progress, of: u64) {
        let Progress::Moving(bytes) = progress else { return };
        let last = *self.last_came_ns.get_or_insert(now_ns);
        if came > 0 {
            self.longest_ns = self.longest_ns.max(now_ns - last);
            self.last_came_ns = Some(now_ns);
        }
        let (shown_ns, shown_bytes) = self.shown;
        if now_ns - shown_ns >= 500_000_000 && of > 0 {
            let rate = (bytes - shown_bytes) as f64 * 8.0 / (now_ns - shown_ns) as f64;
            self.progress.show_long(format_args!("{} of {} MiB, {rate:.3} Gbit/s", bytes >> 20, of >> 20));
            self.shown = (now_ns, bytes);
        }
    }

    fn clear(&self) {
        self.progress.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_time_with_a_backend_in_which_nothing_moves() {
        let mut standstill = Standstill { bytes: 0, since_ns: 5 };
        let stands =
            [(0, true, 9), (0, true, 10), (1, true, 11), (1, true, 14), (1, false, 90), (1, true, 92)];
        let stands = stands.map(|(bytes, live, now)| standstill.check(bytes, live, now).as_nanos());
        assert_eq!(stands, [4, 5, 0, 3, 0, 2]);
    }
}
