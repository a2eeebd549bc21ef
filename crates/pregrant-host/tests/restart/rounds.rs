//! Either end is killed, again and again, while frames move both ways:
//!
//! ```text
//!   model guest (6)   raw rings in this process: no answer twice, none missing, none out of order   lives throughout
//!   TCP guests (7,8)  one connection through the back's switch                                      live throughout
//!   mortal guest (5)  a process: killed, and its domain with it; the next one gets the same vif
//!   back (0)          a process: killed, crashed inside of a batch, or stopped; the next one takes the live rings up
//! ```
//! Each process has its fate from its start on: a number of frames, or a point of the protocol.
//! Fates come from the seed alone, those of backs and those of guests from dice of their own; so
//! `PREGRANT_SEED=... PREGRANT_ROUNDS=...`, as printed, plays the same deaths at the same counts
//! again, though threads may be scheduled otherwise in between.
//!
//! Now and then everything rests, and is counted: grants, mappings, channels, descriptors, threads.

use crate::back::BURST;
use crate::guest::{Guest, NUMBERS, Orders};
use crate::model_guest::ModelGuest;
use crate::tcp::Stream;
use crate::world::{Back, GUEST, Log, OTHER, Word, World};
use pregrant::port::BURST_FRAMES;
use pregrant::xenbus::XenbusState;
use pregrant_loopback::{Audit, DomainSpec, ProcessCounts};
use pregrant_test_machine::one_by_one::alive;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The default number of deaths, unless `PREGRANT_ROUNDS` sets it. The layer `long` plays a
/// thousand.
const ROUNDS: u32 = 100;
/// Frames of the model that wait for their answers, nearly: more than a batch, so that a back which
/// repeats more than one is seen; the model has buffers for 128.
const IN_FLIGHT: u64 = 120;
/// Deaths between two rests at most; of fewer deaths a quarter.
const REST: u32 = 250;
/// Frames that the model sends for each death at most.
const MODEL_FRAMES: u64 = 1500;
/// Whatever is waited for comes in this time, or never.
const PATIENCE: Duration = Duration::from_secs(60);
/// The broker's counts do not change any more after this time.
const SURELY: Duration = Duration::from_millis(300);
/// Eventfds that a process opens when it first needs them: to wake each of the guests that live
/// throughout; and the broker one for each place of a worker's handle, of a back that dies and of
/// its successor.
const LAZY: usize = 4 + 2 * 3;
/// Guests that live throughout: each is a domain with a vif.
const LIVING: u32 = 3;
/// Guests that die under one back, at the end.
const OUTLIVED: u32 = 40;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }

    /// Small numbers as likely as large ones: 1 to 2 to the power of `from`, or of `from + 1`, of
    /// so many.
    fn spread(&mut self, from: u64, powers: u64) -> u32 {
        let most = 1 << (from + self.roll(powers));
        1 + self.roll(most) as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum BackFate {
    /// Killed after this many frames.
    AtFrame(u32),
    /// Killed before it has any vif.
    Attached,
    /// Dies inside of a batch.
    AtPoint(&'static str, u32),
    Stopped(u32),
    Lives,
}

#[derive(Clone, Copy, Debug)]
enum GuestFate {
    /// Killed when the back has its frame of this number.
    AtFrame(u32),
    /// Killed when it has entered Connected, perhaps before that was seen.
    Connected,
    WithTheBack,
    Lives,
}

#[derive(Default)]
struct Tally {
    backs: u32,
    stopped: u32,
    guests: u32,
    pauses_us: Vec<u32>,
    outages: Vec<Duration>,
}

impl Tally {
    /// Kills: a back that was asked to stop is none.
    fn deaths(&self) -> u32 {
        self.backs - self.stopped + self.guests
    }
}

/// A back's life that is over.
struct Life {
    /// One more than the number of its last frame for the model.
    end: u64,
    /// Frames that it may have taken with it, less those that it did.
    may_lose: u64,
}

struct Rounds {
    world: World,
    model: ModelGuest,
    stream: Stream,
    back: Back,
    back_fate: BackFate,
    back_dice: Dice,
    died: Option<Instant>,
    guest: Guest,
    guest_fate: GuestFate,
    guest_dice: Dice,
    lives: u64,
    /// The old process is dead, and this is the next one.
    reviving: Option<(Orders, GuestFate)>,
    numbers: u64,
    /// The model's frames: numbers since the last rest, answers, what came.
    first: u64,
    sent: u64,
    answered: u64,
    next: u64,
    came: u64,
    /// Lives of backs that are over, the last ones.
    lives_of_backs: VecDeque<Life>,
    /// Frames for the model that were lost with them.
    lost: u64,
    /// The reports of those that were asked to stop.
    said_lost: u32,
    /// Frames that have come twice, of model and mortal guest, and how many batches the ended backs
    /// left half done.
    again: u32,
    half_done: u32,
    /// Threads of the present back that serve queues.
    workers: u32,
    /// Queues of the mortal guest.
    queues: u32,
    tally: Tally,
    waiting: (&'static str, Instant),
    /// The machine's counts in the first rest, once there was one.
    first_rest: Option<Audit>,
}

impl Rounds {
    fn begin(seed: u64) -> Self {
        let mut world = World::empty();
        world.add(DomainSpec::guest(GUEST));
        world.add(DomainSpec::guest(OTHER));
        world.log.set(Word::Size, 600);
        world.other_log.set(Word::Size, 900);
        let back = world.back("copy", None);
        let model = ModelGuest::over(world.attach(OTHER), true, "copy", 0);
        let stream = Stream::open(&mut world);
        let mut guest_dice = Dice(seed ^ 0x5a5a_5a5a);
        let (orders, guest_fate) = next_guest(0, &mut guest_dice);
        let queues = orders.queues;
        let guest = orders.start(&world.socket);
        Self {
            world,
            model,
            stream,
            back,
            back_fate: BackFate::AtFrame(500),
            back_dice: Dice(seed),
            died: None,
            guest,
            guest_fate,
            guest_dice,
            lives: 1,
            reviving: None,
            numbers: 0,
            first: 0,
            sent: 0,
            answered: 0,
            next: 0,
            came: 0,
            lives_of_backs: VecDeque::new(),
            lost: 0,
            said_lost: 0,
            again: 0,
            half_done: 0,
            workers: 1,
            queues,
            tally: Tally::default(),
            waiting: ("the first death", Instant::now()),
            first_rest: None,
        }
    }

    /// Nothing may take longer than that: from now on this is waited for.
    fn wait_for(&mut self, what: &'static str) {
        self.waiting = (what, Instant::now());
    }

    /// A little work of everybody who lives in this process.
    fn step(&mut self, send: bool) {
        alive();
        let answered = self.model.answered();
        if answered > 0
            && let Some(died) = self.died.take()
        {
            self.tally.outages.push(died.elapsed());
        }
        self.answered += answered;
        let quota = u64::from(self.tally.deaths() + 1) * MODEL_FRAMES;
        if send && self.model.tx.free() >= 30 && self.sent - self.answered < IN_FLIGHT && self.sent < quota {
            self.model.send(self.sent, 5, self.sent.is_multiple_of(3));
            self.sent += 5;
        }
        self.model.post();
        for seq in self.model.received() {
            assert!(seq >= self.next, "frame {seq} came after {}: twice or late", self.next - 1);
            for missing in self.next..seq {
                lose(&mut self.lives_of_backs, missing);
            }
            self.lost += seq - self.next;
            self.next = seq + 1;
            self.came += 1;
        }
        if send {
            for log in [&self.world.log, &self.world.other_log] {
                log.set(Word::Limit, log.get(Word::Next) + 100);
            }
        }
        self.stream.step(send);
        if self.waiting.1.elapsed() > PATIENCE {
            self.dump();
        }
    }

    /// Prints the whole state, and fails.
    fn dump(&mut self) -> ! {
        let front = |world: &mut World, of: u16, end: &str| {
            let path = format!("/local/domain/{end}/state").replace("FRONT", &of.to_string());
            world.toolstack.read(&path).map_or("-".into(), |s| String::from_utf8_lossy(&s).into_owned())
        };
        let mut states = Vec::new();
        for of in 5..9 {
            let ends =
                ["FRONT/device/vif/0", "0/backend/vif/FRONT/0"].map(|end| front(&mut self.world, of, end));
            states.push((of, ends));
        }
        let words = |log: &crate::world::Log, words: &[Word]| {
            words.iter().map(|w| (*w, log.get(*w))).collect::<Vec<_>>()
        };
        panic!(
            "hangs: {} did not come in {PATIENCE:?}\n  back {:?}, guest {:?}, deaths {} and {}\n  states, front and back: {states:?}\n  \
             back: {:?}\n  guest: {:?}\n  model: sent {}, answered {}, tx in flight {}, rx in flight {}, next {}, {:?}\n  \
             TCP: {:?}, {} bytes of {}\n  {:?}\n  first rest: {:?}",
            self.waiting.0,
            self.back_fate,
            self.guest_fate,
            self.tally.backs,
            self.tally.guests,
            words(
                &self.world.state,
                &[Word::Stage, Word::Frames, Word::PauseUs, Word::Asked, Word::Answered, Word::Vifs]
            ),
            words(&self.world.log, &[Word::Seen, Word::Next, Word::Limit]),
            self.sent,
            self.answered,
            self.model.tx.in_flight(),
            self.model.rx.in_flight(),
            self.next,
            words(&self.world.other_log, &[Word::Seen, Word::Next, Word::Limit]),
            self.stream.states(),
            self.stream.arrived,
            self.stream.sent,
            self.world.broker.audit(),
            self.first_rest,
        )
    }

    /// Lets fate take its course. True: somebody died.
    fn check_round(&mut self) -> bool {
        let frames = self.world.state.get(Word::Frames);
        let back_died = match self.back_fate {
            BackFate::AtFrame(n) => frames >= n,
            BackFate::Attached => self.world.state.get(Word::Stage) >= 1,
            BackFate::AtPoint(..) => self.back.is_dead(),
            BackFate::Stopped(n) => frames >= n,
            BackFate::Lives => false,
        };
        if back_died {
            self.back_dies();
            return true;
        }
        let guest_died = match self.guest_fate {
            GuestFate::AtFrame(n) => self.world.log.times(self.numbers + u64::from(n)) > 0,
            GuestFate::Connected => self.guest_says_4(),
            GuestFate::WithTheBack | GuestFate::Lives => false,
        };
        if guest_died {
            self.guest.kill();
            self.guest_fate = GuestFate::Lives;
            self.reviving = Some(next_guest(self.lives, &mut self.guest_dice));
            self.tally.guests += 1;
        }
        if self.reviving.is_some() && self.back_says_6() {
            self.make_guest();
        }
        guest_died
    }

    /// A living back has closed the dead guest's vif, and writes nothing more to its directory: a
    /// toolstack that makes it again waits for that.
    fn back_says_6(&mut self) -> bool {
        let state = self.world.toolstack.read(&format!("/local/domain/0/backend/vif/{}/0/state", GUEST.0));
        state.is_ok_and(|state| state == b"6")
    }

    fn guest_says_4(&mut self) -> bool {
        let state = self.world.toolstack.read(&format!("/local/domain/{}/device/vif/0/state", GUEST.0));
        state.is_ok_and(|state| state == b"4")
    }

    fn back_dies(&mut self) {
        let stopped = matches!(self.back_fate, BackFate::Stopped(_));
        if stopped {
            self.back.begin_to_detach();
            while !self.back.is_dead() {
                self.step(true);
            }
            assert!(self.back.ended_well(), "a back that had a request to stop failed");
            self.tally.stopped += 1;
        } else {
            self.back.kill();
        }
        self.died = Some(Instant::now());
        self.tally.backs += 1;
        self.tally.pauses_us.extend(Some(self.world.state.get(Word::PauseUs)).filter(|us| *us > 0));
        self.check_life(stopped);
        // One that has not come to life yet would leave its domain behind.
        let with_it = matches!(self.guest_fate, GuestFate::WithTheBack) && self.guest_says_4();
        if with_it {
            self.guest.kill();
            self.guest_fate = GuestFate::Lives;
            self.reviving = Some(next_guest(self.lives, &mut self.guest_dice));
            self.tally.guests += 1;
            // The next guest may come while there is no back.
            if self.guest_dice.roll(2) == 0 {
                self.make_guest();
            }
        }
        let dice = &mut self.back_dice;
        self.back_fate = match dice.roll(16) {
            0..=5 => BackFate::AtFrame(dice.spread(4, 8)),
            6..=12 => {
                let point = crate::POINTS[dice.roll(crate::POINTS.len() as u64) as usize];
                BackFate::AtPoint(point, dice.spread(2, 7))
            }
            13 => BackFate::Attached,
            _ => BackFate::Stopped(dice.spread(4, 8)),
        };
        let ordinary = ["copy", "map"][dice.roll(2) as usize];
        self.start_back(ordinary);
    }

    /// A back's life is over, by a kill or because it was asked to stop.
    fn check_life(&mut self, stopped: bool) {
        // The repeats of this life: the batches in which its predecessors died (R7), one for each
        // worker of one that was killed, and none for a stop. Known by the frames' numbers, of the
        // model's and of the mortal guest's, whose fronts repeat none themselves.
        let [model, mortal] = [&self.world.other_log, &self.world.log];
        let again = model.get(Word::Again) + mortal.get(Word::Again);
        let at_most = self.half_done * BURST_FRAMES as u32;
        assert!(
            again - self.again <= at_most,
            "{} frames came twice in one life of a back, {at_most} at most may; {} backs ended before",
            again - self.again,
            self.tally.backs
        );
        self.again = again;
        // One that was killed before it came to a queue leaves there what it found.
        let unserved =
            |log: &Log, queues: u32| queues - (log.get(Word::Served) & ((1 << queues) - 1)).count_ones();
        let unserved = unserved(model, 1) + unserved(mortal, self.queues);
        self.half_done = self.half_done.min(unserved) + if stopped { 0 } else { self.workers };
        let end = u64::from(self.world.other_log.get(Word::Next));
        // One that is asked to stop says how many it could not deliver.
        let said = self.world.state.get(Word::Lost);
        let may_lose = if stopped { said - self.said_lost } else { BURST }.into();
        self.said_lost = said;
        self.lives_of_backs.push_back(Life { end, may_lose });
    }

    fn start_back(&mut self, ordinary: &str) {
        let crash = match self.back_fate {
            BackFate::AtPoint(point, n) => Some(format!("{point}:{n}")),
            _ => None,
        };
        for log in [&self.world.log, &self.world.other_log] {
            log.set(Word::Served, 0);
        }
        // By turns, but for those that are counted in a rest: with two workers, and without.
        let lives = matches!(self.back_fate, BackFate::Lives);
        let has_two = !lives && self.tally.backs.is_multiple_of(2);
        self.workers = if has_two { 2 } else { 1 };
        self.back = self.world.back_of(ordinary, crash, has_two.then(|| "2".into()));
    }

    /// The next mortal guest, and its domain with it.
    fn make_guest(&mut self) {
        let Some((orders, fate)) = self.reviving.take() else { return };
        self.wait_for("the end of the dead guest's domain");
        while self.world.broker.create_domain(DomainSpec::guest(GUEST)).is_err() {
            self.step(true);
        }
        self.world.make_vif(GUEST);
        self.world.log.forget(orders.first..orders.first + NUMBERS);
        self.numbers = orders.first;
        self.queues = orders.queues;
        self.lives += 1;
        self.guest = orders.start(&self.world.socket);
        self.guest_fate = fate;
        self.wait_for("the next death");
    }

    /// No one dies for a while, the mortal guest is gone, all others rest: what is there?
    fn rest(&mut self, calm: Option<Calm>) -> Calm {
        self.back.kill();
        self.check_life(false);
        self.back_fate = BackFate::Lives;
        self.start_back("copy");
        self.tally.backs += 1;
        self.wait_for("frames of the guest through a new back");
        while self.reviving.is_some() {
            self.check_round();
            self.step(true);
        }
        self.guest_fate = GuestFate::Lives;
        // And of the model: what its predecessor took with it shows by the next number that comes.
        let made = [&self.world.log, &self.world.other_log].map(|log| log.get(Word::Next));
        while self.world.log.get(Word::Next) == made[0] || self.next <= u64::from(made[1]) {
            self.step(true);
        }
        self.guest.kill();
        self.tally.guests += 1;
        self.account(calm)
    }

    /// Guest after guest dies under this back.
    fn outlive(&mut self, guests: u32) {
        for _ in 0..guests {
            let (orders, _) = next_guest(self.lives, &mut self.guest_dice);
            self.reviving = Some((orders, GuestFate::Lives));
            self.make_guest();
            let made = self.world.log.get(Word::Next);
            while self.world.log.get(Word::Next) == made {
                self.step(true);
            }
            self.guest.kill();
            self.tally.guests += 1;
            self.wait_for("the back to let go of a dead guest");
            while !self.back_says_6() {
                self.step(true);
            }
        }
    }

    /// The mortal guest is dead: all others rest, its vif is taken away, and what is left is
    /// counted: by the broker, and what the back's process and this one hold.
    fn account(&mut self, calm: Option<Calm>) -> Calm {
        self.world.remove_vif(GUEST);
        // By the back's own word, not by time: it asks the broker for each thing that it lets go
        // of, and the broker's lock is held while it counts. On a loaded machine the counts stay as
        // they are for long, though there is more to come, and the first are the measure of all
        // others.
        self.wait_for("the end of the dead guest's domain and vif");
        loop {
            let is_gone = self.world.broker.audit().domains == 1 + LIVING as usize;
            self.ask_back();
            if is_gone && self.world.state.get(Word::Vifs) == LIVING {
                break;
            }
        }
        self.wait_for("a rest");
        let mut audit = self.world.broker.audit();
        let mut since = Instant::now();
        loop {
            self.step(false);
            let now = self.world.broker.audit();
            if now != audit {
                (audit, since) = (now, Instant::now());
            }
            let made = self.world.other_log.get(Word::Next) >= self.world.other_log.get(Word::Limit);
            // The first time no one knows what it comes to, but it stays so.
            let calm = calm.map_or(since.elapsed() > SURELY, |calm| audit == calm.audit);
            let came = self.next == u64::from(self.world.other_log.get(Word::Next));
            if calm && made && came && self.answered == self.sent && self.stream.rests() {
                break;
            }
        }
        self.first_rest.get_or_insert(audit);
        self.model.tx.finish().unwrap();
        assert_eq!(self.world.other_log.account(self.first..self.sent).0, 0, "frames of the model are lost");
        self.world.other_log.forget(self.first..self.sent);
        self.first = self.sent;
        for log in [&self.world.log, &self.world.other_log] {
            assert_eq!((log.get(Word::Damaged), log.get(Word::Reordered)), (0, 0));
        }
        assert_eq!(self.model.back_state(), XenbusState::Connected);
        // A back lets go of a dead domain when it next sleeps, which is after it has answered. What
        // is leaked stays.
        let since = Instant::now();
        self.back_counts();
        let back = loop {
            std::thread::sleep(SURELY / 4);
            self.step(false);
            let back = self.back_counts();
            if calm.is_none_or(|calm| is_same(back, calm.back)) || since.elapsed() > 10 * SURELY {
                break back;
            }
        };
        Calm { audit, back, own: ProcessCounts::now().unwrap() }
    }

    /// The resources of the back's process.
    fn back_counts(&mut self) -> ProcessCounts {
        self.wait_for("the back's account of itself");
        self.ask_back();
        let [fds, eventfds, threads, mappings] = [Word::Fds, Word::EventFds, Word::Threads, Word::Mappings]
            .map(|word| self.world.state.get(word) as usize);
        ProcessCounts { fds, eventfds, threads, mappings }
    }

    /// Returns with the back's answer to a new question.
    fn ask_back(&mut self) {
        let asked = self.world.state.get(Word::Asked) + 1;
        self.world.state.set(Word::Asked, asked);
        while self.world.state.get(Word::Answered) != asked {
            self.step(false);
        }
    }

    fn end(mut self) {
        self.wait_for("TCP after the last death");
        let arrived = self.stream.arrived;
        while self.stream.arrived < arrived + 100_000 {
            self.step(true);
        }
        let again = self.world.other_log.get(Word::Again) + self.world.log.get(Word::Again);
        let Tally { backs, stopped, guests, pauses_us, outages } = &mut self.tally;
        pauses_us.sort_unstable();
        outages.sort_unstable();
        println!(
            "  {} kills: {} of backs (and {stopped} asked to stop), {guests} of guests; {} + {} frames sent, \
             {again} twice; {} frames for the model, {} lost ({} at orderly ends); {} bytes of one TCP connection",
            *backs - *stopped + *guests,
            *backs - *stopped,
            self.sent,
            self.world.log.get(Word::Seen),
            self.came,
            self.lost,
            self.world.state.get(Word::Lost),
            self.stream.arrived,
        );
        println!(
            "  from a back's attach to its first frame: median {} us, most {} us; from a back's death to the model's next \
             answer: median {:?}, most {:?}",
            pauses_us.get(pauses_us.len() / 2).unwrap_or(&0),
            pauses_us.last().unwrap_or(&0),
            outages.get(outages.len() / 2).unwrap_or(&Duration::ZERO),
            outages.last().unwrap_or(&Duration::ZERO),
        );
        self.stream.close();
        self.model.close();
        self.world.end(self.back);
    }
}

/// A frame for the model did not come: it went with the back that had it, whose part it is of what
/// may be lost with one.
fn lose(lives: &mut VecDeque<Life>, missing: u64) {
    while lives.front().is_some_and(|life| life.end <= missing) {
        lives.pop_front();
    }
    match lives.front_mut() {
        Some(life) if life.may_lose > 0 => life.may_lose -= 1,
        Some(_) => panic!(
            "frame {missing} for the model is lost, and more than {BURST} with one back that was killed"
        ),
        None => panic!("frame {missing} for the model is lost by a back that lives"),
    }
}

fn next_guest(life: u64, dice: &mut Dice) -> (Orders, GuestFate) {
    let orders = Orders {
        first: life * NUMBERS,
        queues: 1 + dice.roll(3) as u32,
        staged: dice.roll(2) == 0,
        per_frame: dice.roll(2) == 0,
    };
    let fate = match dice.roll(16) {
        0..=11 => GuestFate::AtFrame(dice.spread(2, 9)),
        12..=13 => GuestFate::Connected,
        _ => GuestFate::WithTheBack,
    };
    (orders, fate)
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

pub fn either_end_is_killed_again_and_again() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("PREGRANT_SEED").unwrap_or_else(now);
    let deaths = number("PREGRANT_ROUNDS").map_or(ROUNDS, |n| n as u32);
    println!("PREGRANT_SEED={seed} PREGRANT_ROUNDS={deaths}");
    let mut rounds = Rounds::begin(seed);
    let mut calm: Option<Calm> = None;
    // The first death sets the measure: what leaks with each is seen from there on.
    let mut rest_at = 1.min(deaths);
    loop {
        while rounds.tally.deaths() < rest_at {
            if rounds.check_round() {
                rounds.wait_for("the next death");
            }
            rounds.step(true);
        }
        let now = rounds.rest(calm);
        let first = *calm.get_or_insert(now);
        assert_same(now.back, first.back, "back");
        assert_same(now.own, first.own, "broker");
        if rounds.tally.deaths() >= deaths {
            rounds.outlive(OUTLIVED);
            let now = rounds.account(calm);
            assert_same(now.back, first.back, "back that saw guests die");
            assert_same(now.own, first.own, "broker");
            break;
        }
        rest_at = (rest_at + REST.min(deaths.div_ceil(4))).min(deaths);
        rounds.reviving = Some(next_guest(rounds.lives, &mut rounds.guest_dice));
        rounds.make_guest();
        rounds.back_fate = BackFate::AtFrame(1);
    }
    rounds.end();
}

/// The machine's counts while no one dies and nothing moves.
#[derive(Clone, Copy)]
struct Calm {
    audit: Audit,
    back: ProcessCounts,
    own: ProcessCounts,
}

/// A process holds what it held when the same vifs were there.
fn is_same(now: ProcessCounts, first: ProcessCounts) -> bool {
    let most = |counts: ProcessCounts| (counts.fds - counts.eventfds, counts.threads, counts.mappings);
    most(now) == most(first) && now.eventfds <= first.eventfds + LAZY
}

fn assert_same(now: ProcessCounts, first: ProcessCounts, whose: &str) {
    assert!(is_same(now, first), "the {whose} holds {now:?}, and held {first:?}");
}
