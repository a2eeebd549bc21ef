//! A machine with one guest and one backend, each on a core of its own. With worker threads, each
//! worker also has its own core while there are cores.

use super::Result;
use super::core_placement::CorePlacement;
use pregrant_host::drivers::{Mode, Placement};
use pregrant_testbed::process::process_command::{Case, Nuisance, ProcessCommand};
use pregrant_testbed::process::report::Played;
use pregrant_testbed::testbed::{Ends, Process, Testbed};

/// The domain id of the guest. Other guests have the next ids. If guests are placed by their ids,
/// the guest gets the first of two workers, and the others get the second.
const GUEST: u16 = 6;
const FIRST_NEIGHBOUR: u16 = 101;

pub struct Stand {
    core_placement: CorePlacement,
    ends: Ends,
    vifs: u32,
    neighbours: u16,
    /// True if the guest yields its core when it has nothing to do.
    pub gives_way: bool,
}

impl Stand {
    /// Starts both processes, with a backend of one thread.
    pub fn start() -> Result<Self> {
        Self::with_workers(0, Mode::Poll, Placement::Balanced)
    }

    /// Creates a stand whose backend has this number of worker threads (0: none), with this waiting
    /// mode and placement.
    pub fn with_workers(workers: usize, mode: Mode, place: Placement) -> Result<Self> {
        Self::on(Testbed::start()?, CorePlacement::of(workers)?, mode, place)
    }

    /// Creates a stand whose broker and xenstored run in this process on the guest's core, and
    /// yield to the guest.
    pub fn that_gives_way(workers: usize) -> Result<Self> {
        let core_placement = CorePlacement::of(workers)?;
        let guests = core_placement.guest;
        let testbed = std::thread::spawn(move || {
            pregrant_testbed::process::stay_on(guests).map_err(|e| e.to_string())?;
            rustix::process::nice(19).map_err(|e| format!("cannot give way: {e}"))?;
            Testbed::start().map_err(|e| e.to_string())
        });
        let testbed = testbed.join().map_err(|_| "the testbed's thread panicked")??;
        Self::on(testbed, core_placement, Mode::Adaptive, Placement::Fixed)
    }

    fn on(testbed: Testbed, core_placement: CorePlacement, mode: Mode, place: Placement) -> Result<Self> {
        testbed.guest_domain(GUEST)?;
        let back = testbed.back(core_placement.back, core_placement.worker_setup(place, mode))?;
        let guests = testbed.process("guest", GUEST, core_placement.guest)?;
        let ends = Ends { back, guests, testbed };
        Ok(Self { core_placement, ends, vifs: 0, neighbours: 0, gives_way: false })
    }

    /// Returns the core of each thread.
    pub fn core_placement(&self) -> &CorePlacement {
        &self.core_placement
    }

    /// Runs one case. If it has a neighbour, that is active from before the case until after it.
    /// Returns the guest's results and the backend's.
    pub fn play(&mut self, case: Case) -> Result<(Played, Played)> {
        let case = Case { front: GUEST, handle: self.vifs, ..case };
        self.vifs += 1;
        let (beside, size) = (case.beside, case.size);
        let domid = FIRST_NEIGHBOUR + self.neighbours;
        let core = self.core_placement.guest;
        let begin = |ends: &mut Ends| match beside {
            None | Some(Nuisance::Absent) => Ok(None),
            Some(nuisance) => begin(ends, nuisance, size, domid, core).map(Some),
        };
        let (guest, back, neighbour) = self.ends.play(case, begin)?;
        if let Some(mut process) = neighbour {
            self.neighbours += 2; // all odd: at the second of two workers
            process.kill()?;
            if beside.is_some_and(Nuisance::has_vif) {
                self.ends.testbed.remove_vif(domid, 0)?;
            }
        }
        Ok((guest, back))
    }
}

/// Starts a neighbour, and waits until it behaves as it should.
fn begin(
    ends: &mut Ends,
    nuisance: Nuisance,
    size: usize,
    domid: u16,
    core: Option<usize>,
) -> Result<Process> {
    ends.testbed.guest_domain(domid)?;
    if nuisance.has_vif() {
        ends.testbed.make_vif(domid, 0)?;
    }
    let mut process = ends.testbed.process("guest", domid, core)?;
    let size = if nuisance == Nuisance::GreedyLong { 65535 } else { size };
    process.ask(&ProcessCommand::Annoy { nuisance, size }, &mut [&mut ends.back, &mut ends.guests])?;
    Ok(process)
}
