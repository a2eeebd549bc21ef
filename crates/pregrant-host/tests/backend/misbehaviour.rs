//! The cases that the rig plays on real Xen (`cargo xtask rig misbehaviour`), played on the
//! loopback against our back. There the results are compared with those of Linux's netback; here
//! with the expected ones.

#[path = "../../examples/misbehaviour/cases.rs"]
mod cases;

use pregrant::DomId;
use pregrant_test_machine::machine::{BACK, Back, Machine, Test, until};

pub const TESTS: &[Test] = &[("each_case_has_its_answers", each_case_has_its_answers)];

fn each_case_has_its_answers() {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    machine.guest_domain(5);
    let ids: Vec<_> = (0..cases::vifs() as u32).map(|handle| machine.make_vif(5, handle)).collect();
    let (platform, mut xs) = machine.attach(DomId(5));
    let mut lines = Vec::new();
    cases::play(&platform, &mut xs, BACK, |line| lines.push(line)).unwrap();
    drop((platform, xs));
    let golden: Vec<&str> = include_str!("misbehaviour.golden").lines().collect();
    assert_eq!(lines.len(), cases::all().len());
    assert!(lines == golden, "these lines are not as they should be:\n{}", lines.join("\n"));
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    until(|| back.ask(|backend| backend.reports().is_empty()));
    back.stop();
    machine.end();
}
