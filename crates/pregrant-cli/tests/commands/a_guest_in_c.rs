//! docs/protocol 8.5 is enough to write a guest: this one, in C and linked with nothing of ours, is
//! built with `cc`, attaches to a machine and finds another guest.

use crate::text;
use pregrant_test_machine::served::{Process, Served};
use pregrant_testkit::skip::skip;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

#[test]
fn a_guest_that_knows_these_pages_alone() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/guest.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-in-c");
    let flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"];
    match Command::new("cc").args(flags).args([&program, &source]).output() {
        Err(e) if e.kind() == ErrorKind::NotFound => return skip("no C compiler (install gcc)"),
        built => {
            let built = built.expect("the compiler starts");
            assert!(built.status.success(), "{}", text(&built.stderr));
        }
    }
    let machine = Served::start("in-c", &["--guest", "5", "--guest", "6"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let mut other = Process::start(&mut machine.command(&["front", "--domain", "6", "--serve"]));
    other.line_with("10.0.0.6");
    let found = Command::new(&program).arg(&machine.dir).args(["5", "10.0.0.6"]).output().expect("it starts");
    assert_eq!((text(&found.stdout), text(&found.stderr)), ("00:16:3e:00:06:00\n".into(), String::new()));
    assert!(found.status.success());
    other.stop();
    back.stop();
    machine.end();
}
