//! A guest that shows work and does not notify: the backend sees it late and counts it; with the
//! bound lifted its process ends, so that a test fails which loses a wake-up.
//!
//! The binary starts itself, once for each: the bound is the process's.

use pregrant::wire::netif::RSP_OKAY;
use pregrant_host::drivers::wait::UNBOUNDED;
use pregrant_test_machine::machine::{Back, Machine, until};
use pregrant_test_machine::one_by_one;
use pregrant_test_machine::raw_guest::RawGuest;
use pregrant_testkit::model_front::Slot;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("child") {
        return a_wakeup_is_lost();
    }
    // Not by `machine::run`, which lifts the bound.
    let tests: [(&str, fn()); 2] = [
        ("a_lost_wakeup_is_counted", a_lost_wakeup_is_counted),
        ("a_lost_wakeup_ends_a_test", a_lost_wakeup_ends_a_test),
    ];
    let tests = tests.iter().map(|(name, test)| (name.to_string(), test as &dyn Fn()));
    one_by_one::run(tests.collect(), one_by_one::Leaves::Nothing, || {});
}

fn a_lost_wakeup_is_counted() {
    let bounded = child(|command| command.env_remove(UNBOUNDED));
    let said = String::from_utf8_lossy(&bounded.stderr).into_owned();
    assert!(bounded.status.success(), "{said}");
}

fn a_lost_wakeup_ends_a_test() {
    let unbounded = child(|command| command.env(UNBOUNDED, "unbounded"));
    let said = String::from_utf8_lossy(&unbounded.stderr).into_owned();
    assert_eq!(unbounded.status.signal(), Some(6), "with the bound lifted it ends by SIGABRT: {said}");
    assert!(said.contains("a wake-up was lost: the backend of domain 0 waits for frames"), "{said}");
}

fn child(with: impl FnOnce(&mut Command) -> &mut Command) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    with(command.arg("child")).stdout(Stdio::null()).output().unwrap()
}

fn a_wakeup_is_lost() {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    let missed = |back: &Back| back.ask(|backend| backend.missed_wakeups());
    machine.guest_domain(5);
    let vif = machine.make_vif(5, 0);
    let mut guest = RawGuest::attach(&machine, vif);
    guest.connect_honestly();
    for id in 0..3 {
        guest.play(&[Slot::Data(guest.request(id, 64))]);
        assert_eq!(guest.answers(), [RSP_OKAY]);
    }
    // Long enough for several sleeps that nothing ends: with no work there is nothing that was
    // missed.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(missed(&back), 0);
    // The question above woke it. A request that finds it awake still is served in a round: then
    // once more.
    while missed(&back) == 0 {
        std::thread::sleep(Duration::from_millis(50));
        guest.tx.play(&[Slot::Data(guest.request(3, 64))]);
        assert_eq!(guest.answers(), [RSP_OKAY], "it is served all the same");
    }
    let counted = missed(&back);
    guest.play(&[Slot::Data(guest.request(4, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    assert_eq!(missed(&back), counted);
    drop(guest);
    machine.remove_vif(vif);
    until(|| back.report(vif).is_none());
    back.stop();
    machine.end();
}
