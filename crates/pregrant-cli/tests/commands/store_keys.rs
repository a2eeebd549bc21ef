//! `pregrant store ls`, `read` and `write` on a machine: what an operator does with xenstore-ls,
//! xenstore-read and xenstore-write where these are installed.

use crate::{pregrant, text};
use pregrant_test_machine::served::Served;

#[test]
fn keys_of_a_machine_are_listed_read_and_written() {
    let machine = Served::start("store-keys", &["--guest", "5"]);
    let said = |args: &[&str]| {
        let out = machine.command(&[&["store"], args].concat()).output().expect("the program starts");
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let vif = "/local/domain/0/backend/vif/5/0";
    assert_eq!(
        said(&["read", &format!("{vif}/mac")]),
        (Some(0), "00:16:3e:00:05:00\n".into(), String::new())
    );
    let bridge = format!("{vif}/bridge");
    assert_eq!(said(&["write", &bridge, "xenbr0"]), (Some(0), String::new(), String::new()));
    // A guest may write what it likes; a terminal is not to obey it.
    assert_eq!(said(&["write", "/local/domain/5/name", "a\u{1b}[2Jb"]).0, Some(0));
    let (code, listed, _) = said(&["ls", "/local/domain"]);
    assert_eq!(code, Some(0));
    for line in ["0 = \"\"", " backend = \"\"", "     bridge = \"xenbr0\"", " name = \"a\\u{1b}[2Jb\""] {
        assert!(listed.lines().any(|listed| listed == line), "no {line:?} in\n{listed}");
    }
    let all = said(&["ls"]).1;
    assert!(all.lines().any(|line| line == "  5 = \"\"") && !all.contains('\u{1b}'), "{all}");
    for (args, words) in [
        (&["read", "/nothing/here"][..], "read /nothing/here: "),
        (&["ls", "/nothing"], "pregrant store ls"),
        (&["write", "/a b", "x"], "/a b"),
    ] {
        let (code, out, err) = said(args);
        assert!(code == Some(1) && out.is_empty() && err.contains(words), "{args:?}: {code:?} {out} {err}");
    }
    machine.end();
    let out = pregrant(&["store", "ls", "--loopback", "/nonexistent"]);
    let err = text(&out.stderr);
    assert!(out.status.code() == Some(1) && err.contains("pregrant-lab loopback serve"), "{err}");
}
