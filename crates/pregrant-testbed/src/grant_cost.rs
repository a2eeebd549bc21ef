//! What a grant costs the two domains, as `pregrant-lab bench grant` prints it.
//!
//! ```text
//!   core 1: guest    grant a burst of pages -->         --> revoke them one by one    then the same with pages that
//!   core 2: backend                          copy of each                              are given back all at once
//! ```
//! Both are threads of this process, so that nothing but the lines of the table and of the statuses
//! goes from core to core. A phase is timed as a whole, by the side whose work it is.

use crate::limit::pin;
use crate::named;
use pregrant::platform::{Access, CopyOp, GrantPool, LocalBytes, PeerMem, Platform};
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, GrantRef};
use pregrant_loopback::{Broker, DomainSpec, GrantTableVersion, Hooks, Loopback};
use std::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

const BACK: DomId = DomId(0);
const GUEST: DomId = DomId(5);

named! {
    pub enum Op {
        /// A page is granted.
        Grant = "grant",
        /// Bytes of the page are copied, in a batch.
        Copy = "copy",
        /// The grant is revoked alone.
        Revoke = "revoke",
        /// The grant is revoked together with all grants of its region.
        Release = "release",
    }
}

/// All operations, in the order of their numbers.
pub const OPS: [Op; 4] = [Op::Grant, Op::Copy, Op::Revoke, Op::Release];

/// For each op of [`OPS`], its time, and how often it was done.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    pub ns: [u64; OPS.len()],
    pub times: [u64; OPS.len()],
}

impl Spent {
    fn time<T>(&mut self, op: Op, times: usize, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.ns[op as usize] += start.elapsed().as_nanos() as u64;
        self.times[op as usize] += times as u64;
        done
    }
}

/// The message to the backend: the grants of a burst that it must copy. It answers with `FromBack`,
/// the time that the copies took.
type ToBack = Vec<GrantRef>;
type FromBack = Result<Spent, String>;

/// Receives one message, by polling if the other side has a core of its own.
fn next<T>(from: &Receiver<T>, shared_core: bool) -> Option<T> {
    loop {
        match from.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if shared_core => std::thread::yield_now(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
}

/// Runs the backend's side: copies pages as asked, until the guest has finished.
fn copy_bursts(
    back: &Loopback,
    size: u16,
    shared_core: bool,
    bursts: &Receiver<ToBack>,
    done: &SyncSender<FromBack>,
) {
    let mut bytes = Vec::new();
    let mut ops: Vec<CopyOp> = Vec::new();
    while let Some(grefs) = next(bursts, shared_core) {
        bytes.resize(grefs.len() * usize::from(size), 0);
        ops.clear();
        ops.extend(grefs.iter().enumerate().map(|(i, &gref)| CopyOp {
            gref,
            len: size,
            at: i as u32 * u32::from(size),
            ..CopyOp::NOTHING
        }));
        let mut spent = Spent::default();
        let copied = spent.time(Op::Copy, ops.len(), || {
            back.peer().copy(GUEST, LocalBytes::FromPeer(&mut bytes), &mut ops)
        });
        let failed = ops.iter().map(|op| op.status).find(|status| *status != GrantStatus::OKAY);
        let outcome = match (copied, failed) {
            (Ok(()), None) => Ok(spent),
            (Err(e), _) => Err(e.to_string()),
            (Ok(()), Some(status)) => Err(format!("a granted page was not copied: {status}")),
        };
        if done.send(outcome).is_err() {
            return;
        }
    }
}

/// Measures a burst of `burst` pages, of each of which `size` bytes are copied, on a machine of its
/// own with grant tables of this version, for a time.
pub fn measure(
    table: GrantTableVersion,
    (burst, size): (usize, u16),
    [guest_core, back_core]: [usize; 2],
    run_for: Duration,
) -> Result<Spent, Box<dyn Error>> {
    let shared_core = guest_core == back_core;
    let broker = Broker::start(None, Hooks::default())?;
    broker.use_grant_tables(table);
    broker.create_domain(DomainSpec::driver(BACK))?;
    broker.create_domain(DomainSpec::guest(GUEST))?;
    let (guest, back) = (broker.attach(GUEST)?, broker.attach(BACK)?);
    let (to_back, bursts) = sync_channel::<ToBack>(1);
    let (done, from_back) = sync_channel::<FromBack>(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // If it cannot be pinned, the guest cannot either, and reports that.
            let _ = pin(back_core);
            copy_bursts(&back, size, shared_core, &bursts, &done);
        });
        // A thread of its own: this one stays where it may be.
        let guest = scope.spawn(move || -> Result<Spent, Box<dyn Error + Send + Sync>> {
            pin(guest_core)?;
            let copy = |grefs: &[GrantRef]| {
                to_back.send(grefs.to_vec()).map_err(|_| "the backend's thread ended")?;
                next(&from_back, shared_core).unwrap_or(Err("the backend's thread ended".into()))
            };
            // Once for caches and first touches.
            rounds(burst, &guest, Duration::ZERO, copy)?;
            rounds(burst, &guest, run_for, copy)
        });
        let spent = guest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        spent.map_err(|e| e.to_string().into())
    })
}

/// Runs the guest's side: rounds of all operations until the time is over, at least one round.
fn rounds(
    burst: usize,
    guest: &Loopback,
    run_for: Duration,
    copy: impl Fn(&[GrantRef]) -> FromBack,
) -> Result<Spent, Box<dyn Error + Send + Sync>> {
    let grants = guest.grants();
    let table = grants.per_frame().ok_or("the loopback grants page by page")?;
    let pages = table.pages(burst)?;
    let mut refs = vec![GrantRef::NONE; burst];
    let mut spent = Spent::default();
    let start = Instant::now();
    loop {
        let granted = spent.time(Op::Grant, burst, || {
            refs.iter_mut().enumerate().try_for_each(|(page, gref)| {
                table.grant(BACK, &pages, page, Access::ReadOnly).map(|made| *gref = made)
            })
        });
        granted?;
        let copied = copy(&refs)?;
        spent.ns[Op::Copy as usize] += copied.ns[Op::Copy as usize];
        spent.times[Op::Copy as usize] += copied.times[Op::Copy as usize];
        spent
            .time(Op::Revoke, burst, || refs.iter().try_for_each(|gref| table.revoke(*gref)))
            .map_err(|_| "a page that was copied is in use")?;
        let region = grants.alloc(BACK, Access::ReadOnly, &mut refs)?;
        copy(&refs)?;
        spent
            .time(Op::Release, burst, || grants.release(region))
            .map_err(|_| "a region that was copied is in use")?;
        if start.elapsed() >= run_for {
            break;
        }
    }
    grants.release(pages).map_err(|_| "a revoked page is in use")?;
    Ok(spent)
}
