//! docs/first-front.md: the program on the page is the example, and it behaves on a machine as the
//! page describes.

#[path = "../../../pregrant-host/examples/first_front.rs"]
#[allow(dead_code)] // its `main` reads the command line
mod example;

use pregrant::DomId;
use pregrant::net::headers::MacAddr;
use pregrant_test_machine::served::{Process, Served};
use std::net::Ipv4Addr;

const PAGE: &str = include_str!("../../../../docs/first-front.md");
const EXAMPLE: &str = include_str!("../../../pregrant-host/examples/first_front.rs");

#[test]
fn the_page_has_the_example_as_it_is() {
    let code = PAGE.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let program: Vec<&str> =
        EXAMPLE.lines().skip_while(|line| line.starts_with("//!") || line.is_empty()).collect();
    assert_eq!(
        code.expect("a program").trim_end(),
        program.join("\n"),
        "copy the example to docs/first-front.md"
    );
}

#[test]
fn a_first_front_finds_another_guest() {
    let machine = Served::start("first-front", &["--guest", "5", "--guest", "6"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let mut other = Process::start(&mut machine.command(&["front", "--domain", "6", "--serve"]));
    other.line_with("10.0.0.6");
    // By the machine's directory, as a user has it.
    let found = example::ask(&machine.dir, DomId(5), Ipv4Addr::new(10, 0, 0, 6)).expect("an answer");
    assert_eq!(found, MacAddr([0x00, 0x16, 0x3e, 0, 6, 0]));
    other.stop();
    back.stop();
    machine.end();
}
