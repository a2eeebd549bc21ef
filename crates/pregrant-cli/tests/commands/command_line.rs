//! Promises of the command line for each subcommand of both programs: hints, examples, exit codes.

use crate::{pregrant, text};
use pregrant_test_machine::programs::{self, LAB, PREGRANT};
use std::collections::BTreeSet;
use std::process::Command;

/// The subcommands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
    // A line that goes on is indented further.
    let names = lines.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
    names.filter(|name| *name != "help").map(String::from).collect()
}

/// Every subcommand, found through the help texts: each prints its help with examples to standard
/// output; if an argument is missing or unknown, it reports that on standard error.
#[test]
fn every_subcommand_explains_itself() {
    let of_operators = [
        "",
        "back",
        "blkback",
        "front",
        "blkfront",
        "doctor",
        "top",
        "hotplug",
        "store ls",
        "store read",
        "store write",
    ];
    explains_itself(PREGRANT, &of_operators);
    let of_the_laboratory = [
        "",
        "loopback",
        "loopback serve",
        "loopback attach",
        "loopback detach",
        "back",
        "front",
        "demo",
        "bench",
        "bench net",
        "bench latency",
        "bench limit",
        "bench peers",
        "bench scale",
        "bench fairness",
        "bench store",
        "frames",
        "report",
        "store",
        "store serve",
    ];
    explains_itself(LAB, &of_the_laboratory);
}

fn explains_itself(program: &str, known: &[&str]) {
    let mut todo: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = BTreeSet::new();
    while let Some(path) = todo.pop() {
        let with = |last: &str| {
            let args: Vec<&str> = path.iter().map(String::as_str).chain([last]).collect();
            Command::new(programs::path(program)).args(&args).output().expect("the program starts")
        };
        let out = with("--help");
        let help = text(&out.stdout);
        assert!(out.status.success() && out.stderr.is_empty(), "{path:?}");
        assert!(help.contains("Examples:\n  pregrant"), "{path:?} has no examples:\n{help}");
        let out = with("--no-such-option");
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{path:?}");
        assert!(text(&out.stderr).contains("--help"), "{path:?}: {}", text(&out.stderr));
        let below = listed(&help);
        if !below.is_empty() {
            let out = with("no-such-subcommand");
            assert_eq!(out.status.code(), Some(2), "{path:?}");
            assert!(text(&out.stderr).contains("no-such-subcommand"), "{path:?}");
        }
        for name in below {
            todo.push(path.iter().cloned().chain([name]).collect());
        }
        seen.insert(path.join(" "));
    }
    for known in known {
        assert!(seen.contains(*known), "{known:?} is not among {seen:?}");
    }
}

/// Options for the loopback only are refused on Xen before anything is opened, with a line that
/// gives the reason.
#[test]
fn neither_end_maps_a_whole_guest_or_lends_pages_on_xen() {
    for (end, path) in ["back", "front"].into_iter().flat_map(|end| [(end, "foreign"), (end, "guest-copy")]) {
        let ends: &[&str] = if end == "front" { &["front", "--tap", "x"] } else { &["back"] };
        let out = pregrant(&[ends, &["--path", path]].concat());
        let said = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.lines().count() == 1 && said.contains("--loopback") && said.contains(path), "{said}");
    }
}

/// Options that cannot have an effect are wrong usage, reported before anything is opened: exit
/// code 2, with the option and the reason.
#[test]
fn options_without_effect_are_refused() {
    for (line, said) in [
        ("front --data-len 32768", "as 64 or 128 or 256 or 2048 or 4096 or 65535"),
        ("front --data-len 0", "as 64 or 128"),
        ("front --data-len 8", "as 64 or 128"),
        ("front --data-len 100", "as 64 or 128"),
        (
            "front --path copy --experiment rx-only=on",
            "--experiment rx-only has no effect: --path copy has no staging buffers",
        ),
        ("front --experiment rx-only=on --experiment tx-data-len=64", "cannot be used with"),
        (
            "front --data-len 64 --rx-data-len 64 --experiment rx-only=on",
            "--data-len has no effect: both directions",
        ),
        (
            "back --staging off --experiment path=staging+copy",
            "--experiment path has no effect: there are no heads without",
        ),
        ("back --staging 256,300", "off, or some of the lengths 64, 128, 256"),
        ("front --path copy --buffers 600", "--buffers has no effect: --path copy has a page for each slot"),
        ("front --buffers 40000", "auto, or a number from 1 to 32767"),
        ("front --path copy --data-len 256", "--data-len has no effect: --path copy has no staging buffers"),
        ("front --tap x --address 10.0.0.1", "cannot be used with"),
        ("front --queues 2", "--tap"),
        ("front --count 3", "--ping"),
        ("front --serve --count 3", "cannot be used with"),
        ("front --send 10.0.0.6 --interval 3", "cannot be used with"),
        ("front --ping 10.0.0.6 --bytes 3", "cannot be used with"),
        ("front --ping 10.0.0.6 --queues 2", "cannot be used with"),
        ("back --place own --workers 2", "--workers has no effect: --place own"),
        ("blkback --place own --workers 2", "--workers has no effect: --place own"),
        ("back --give-back 5.0 --mode poll", "--mode has no effect: --give-back without --take"),
        ("back --give-back 5.0 --path map", "--path has no effect: --give-back without --take"),
        ("back --give-back 5.0 --no-sg", "--no-sg has no effect: --give-back without --take"),
        ("back --allow-mac-spoofing all", "--allow-mac-spoofing has no effect: a tap's guest"),
        (
            "back --port switch --experiment tap-way=burst",
            "--experiment tap-way has no effect: the switch has no taps",
        ),
        (
            "back --experiment copy-below=256",
            "--experiment copy-below has no effect: --path copy maps no frames",
        ),
        (
            "back --experiment path=staging+copy --experiment copy-below=256",
            "--experiment copy-below has no effect: --path staging+copy",
        ),
        (
            "back --port switch --experiment lend-from=256",
            "--experiment lend-from has no effect: it is for taps",
        ),
        ("back --experiment lend-between=256", "--experiment lend-between has no effect: taps have no"),
        (
            "back --loopback /x --experiment lend-from=256",
            "--experiment lend-from has no effect: it is for taps (--port tap)",
        ),
        (
            "back --loopback /x --port tap --experiment lend-between=256",
            "--experiment lend-between has no effect: taps have no",
        ),
        ("loopback attach --dir /x 7 --vif color=red", "bridge, script"),
        ("loopback detach --dir /x 7 --vif 0 --disk xvda", "cannot be used with"),
        ("loopback detach --dir /x 7 --disk sda", "a disk's name, xvda"),
        ("back --path map --experiment copy-below=127", "127 is not in 128..=65535"),
        ("back --experiment lend-from=65536", "65536 is not in 128..=65535"),
        ("front --mode often", "[possible values: adaptive, event, poll]"),
        ("front --rx reference", "--tap"),
        ("front --tap x --rx reference", "--rx has no effect: frames by --path staging come in no pages"),
        ("front --tap x --path copy --rx reference --experiment hook=pass", "cannot be used with"),
        (
            "front --tap x --path gref-mapping --experiment own-buffers=256",
            "--experiment own-buffers has no effect: on Xen",
        ),
        (
            "front --loopback /x --domain 5 --tap x --experiment own-buffers=256",
            "--experiment own-buffers has no effect: by --path",
        ),
        ("front --experiment own-buffers=256", "--tap"),
        ("front --experiment match=all", "--experiment hook=ACTION"),
        ("front --experiment hook=bounce", "pass, drop, tx, or redirect=DOMID.HANDLE"),
        ("front --experiment hook=redirect=5", "pass, drop, tx, or redirect=DOMID.HANDLE"),
        (
            "front --experiment hook=redirect=5.0",
            "names the vif that the hook is on; for that one write hook=tx",
        ),
        (
            "front --loopback /x --domain 5 --experiment hook=redirect=6.1",
            "a guest sends by its own vifs alone",
        ),
        ("back --port switch --hotplug-socket /x", "--hotplug-socket has no effect: the switch"),
        ("back --hotplug none --hotplug-socket /x", "--hotplug-socket has no effect"),
        ("front --domain 5 --tap x", "--domain has no effect: on Xen the guest is the domain"),
        ("blkfront --domain 5 --mount /", "--domain has no effect: on Xen the guest is the domain"),
        (
            "back --port switch --vif 5 --allow-mac-spoofing 6",
            "--allow-mac-spoofing 6 has no effect: no such vif",
        ),
        ("back --vif 5 --capture 6.0=/x", "--capture 6.0=... has no effect: vif 6.0 is not among"),
        ("back --loopback /x --hotplug self", "--hotplug has no effect: the switch has no interfaces"),
        ("top --prometheus --interval 2", "cannot be used with"),
        ("top --prometheus --once", "cannot be used with"),
        ("frames --serve --count 3", "cannot be used with"),
        ("bench net --path copy --data-len 64", "--data-len has no effect: no path that is measured"),
        ("bench net --copy-below x", "invalid value 'x' for '--copy-below <BYTES>'"),
        ("bench net --copy-below 256", "--copy-below has no effect: no path that is measured maps frames"),
        ("bench net --path map --copy-below 256", "--copy-below has no effect: without --look"),
        ("bench net --dir rx --look", "--look has no effect: it is for --dir tx"),
        ("bench net --dir tx --rx reference", "--rx has no effect"),
        ("bench net --path gref-mapping --dir rx --tx own", "--tx has no effect: it is for --dir tx"),
        ("bench net --path copy --tx own", "--tx has no effect: by no path"),
        ("bench net --dir rx --path staging --rx reference", "--rx has no effect: no path that is measured"),
        ("bench blk --guests 1 --greedy 4096", "--greedy has no effect: a guest that is alone"),
        ("bench fairness --path guest-copy", "possible values: copy, "),
        ("bench neighbour --path map", "possible values: copy, "),
    ] {
        let out = pregrant(&line.split(' ').collect::<Vec<_>>());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{line}: {err}");
        assert!(err.contains(said), "{line}: {err}");
    }
}

/// Results, and then the error: each on a full disk.
#[test]
fn a_command_whose_words_find_no_room_fails_and_does_not_panic() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("there is one");
    for args in [&["doctor", "--loopback", "/none"][..], &["demo"], &["bench", "limit", "--help"]] {
        let mut command = programs::command(args);
        let ended = command.stdout(full()).stderr(full()).status().expect("it starts");
        assert!(ended.code().is_some_and(|code| code < 2), "{args:?}: {ended}");
    }
}

#[test]
fn doctor_names_the_machine_that_is_not_there() {
    for args in [
        &["doctor", "--loopback", "/none of it"][..],
        &["doctor", "--vbd", "5.51712", "--loopback", "/none of it"],
    ] {
        let out = pregrant(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1));
        assert!(said.contains("no such directory, so no machine"), "{said}");
        assert!(
            said.contains("pregrant-lab loopback serve --dir '/none of it'") && !said.contains("xenstored"),
            "{said}"
        );
    }
}
