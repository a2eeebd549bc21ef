//! A crowd's guests, in one process.
//!
//! It keeps the rings of those that send full, each in its turn, and polls: the backend has no one
//! to notify. The members that do not send are connected and asleep, as a guest without traffic is.

use crate::process::guest::{self, Guest, not_connected};
use crate::process::process_command::{Case, Dir, Load, Member};
use crate::process::report::Report;
use crate::process::{Result, has_command, send_report};
use pregrant::net::front::FrontConfig;
use pregrant::net::path::PathName;
use pregrant::net::path::staging::list::DataLen;
use pregrant::port::{Arena, BURST_FRAMES, Offload};
use pregrant_host::drivers::Mode;
use pregrant_host::ports::sequence::Head;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest wait for a handshake, or for answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of rounds over all sending guests between two checks for a command.
const ROUNDS_TO_CHECK: u32 = 16;

struct CrowdMember {
    guest: Guest,
    /// For each queue, the number of its next frame. A guest that sends on all queues uses the same
    /// numbers on each.
    next: Vec<u64>,
}

#[derive(Default)]
pub struct Crowd {
    members: Vec<CrowdMember>,
    /// Scratch memory in which each burst is made.
    scratch: Arena,
    head: Head,
}

impl Crowd {
    pub fn gather(&mut self, broker: &Path, members: &[Member], each: &FrontConfig) -> Result<Report> {
        let data_len = each.staging.tx.map(DataLen::value);
        for member in members {
            let config = FrontConfig { queues: member.queues, ..*each };
            let guest = guest::attach(broker, member.domid, 0, config)?;
            self.members.push(CrowdMember { guest, next: vec![0; member.queues as usize] });
        }
        // Their handshakes run in parallel: all have written their requests before one is waited
        // for.
        let until = Instant::now() + PATIENCE;
        for member in &mut self.members {
            member.guest.control(Duration::from_millis(1))?;
        }
        for member in &mut self.members {
            while !member.guest.vif().is_live() || member.guest.vif().is_announcing() {
                if Instant::now() > until {
                    return Err(not_connected(&mut member.guest, PATIENCE));
                }
                member.guest.control(Duration::from_millis(10))?;
            }
            let (vif, wanted) = (member.guest.vif(), member.next.len());
            if vif.nr_queues() != wanted || data_len.is_some() != vif.staging_accepted(0) {
                let (id, has) = (member.guest.device().id(), vif.nr_queues());
                return Err(format!(
                    "{id}: {wanted} queue(s) and data length {data_len:?} were asked for, and not given ({has} queues): the \
                     back's log says why"
                )
                .into());
            }
        }
        Ok(Report::Done)
    }

    /// Reports when all rings are full, and continues until there is a command.
    pub fn send(&mut self, loads: &[Load]) -> Result<()> {
        for load in loads {
            while self.fill(*load)? {}
        }
        send_report(&Report::Done)?;
        let mut quiet_since = Instant::now();
        for round in 0u32.. {
            if round.is_multiple_of(ROUNDS_TO_CHECK) && has_command()? {
                break;
            }
            let mut moved = false;
            // Another is the first each time: after a pause of this thread the first gets its
            // frames out before the others.
            let first = round as usize % loads.len().max(1);
            for load in loads[first..].iter().chain(&loads[..first]) {
                moved |= self.fill(*load)?;
            }
            if moved {
                quiet_since = Instant::now();
            } else if quiet_since.elapsed() > PATIENCE {
                return Err(format!("nothing moved for {PATIENCE:?}").into());
            } else {
                // It has a core of its own; if others want that core too, a thread that yields is
                // away for long, and the rings run empty.
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Sends a burst on each queue of one of the guests. Returns true if anything was sent.
    fn fill(&mut self, load: Load) -> Result<bool> {
        let Self { members, scratch, head } = self;
        let member = members.get_mut(load.member).ok_or("no such member of the crowd")?;
        let mut sent = 0;
        for queue in 0..member.next.len() {
            member.guest.reclaim(queue, 1)?;
            let first = member.next[queue];
            scratch.clear();
            for k in 0..BURST_FRAMES as u64 {
                let Some(frame) = scratch.room(load.size, Offload::default()) else { break };
                head.fill_head(frame, first + k);
            }
            let n = member.guest.send(queue, &scratch.burst())?;
            member.next[queue] += n as u64;
            sent += n;
        }
        Ok(sent > 0)
    }

    /// Waits until everything that was sent is answered.
    pub fn rest(&mut self) -> Result<Report> {
        let until = Instant::now() + PATIENCE;
        for member in &mut self.members {
            for queue in 0..member.next.len() {
                while member.guest.vif().in_flight(queue) > 0 {
                    if member.guest.reclaim(queue, 1)? > 0 {
                        continue;
                    }
                    if Instant::now() > until {
                        let n = member.guest.vif().in_flight(queue);
                        let id = member.guest.device().id();
                        return Err(format!("{id}: {n} TX requests have no answer after {PATIENCE:?}").into());
                    }
                    std::thread::yield_now();
                }
            }
        }
        Ok(Report::Sent {
            frames: self.members.iter().map(|member| member.next.iter().sum()).collect(),
            missed_wakeups: self.members.iter().map(|member| member.guest.missed_wakeups()).sum(),
        })
    }

    /// Sends single frames of the first guest, and receives them back.
    pub fn echo(&mut self, seconds: f64, mode: Mode) -> Result<Report> {
        let member = self.members.first_mut().ok_or("the crowd has no guest")?;
        let case = Case { burst: 1, seconds, mode, ..Case::of(Dir::Echo, PathName::Copy) };
        let before = guest::spent(&member.guest);
        let mut played = guest::echo(&mut member.guest, &case)?;
        // Those of the marks, too, for which the backend wakes as well.
        let all = guest::spent(&member.guest).since(&before);
        (played.spent.ops.wakeups, played.spent.missed_wakeups) = (all.ops.wakeups, all.missed_wakeups);
        Ok(Report::Case(Box::new(played)))
    }
}
