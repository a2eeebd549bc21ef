//! Promises of the command line for each subcommand: hints, examples, exit codes, and that commands
//! which run at the same time do not meet and leave nothing.

use crate::{PREGRANT, pregrant, text};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The subcommands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
    // A line that goes on is indented further.
    let names = lines.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
    names.filter(|name| *name != "help").map(String::from).collect()
}

/// Every subcommand that there is, found through the help texts: each explains itself with
/// examples, on standard output; without what it needs, or with what it does not know, it says so
/// on standard error.
#[test]
fn every_subcommand_explains_itself() {
    let mut todo: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = BTreeSet::new();
    while let Some(path) = todo.pop() {
        let with = |last: &str| {
            let args: Vec<&str> = path.iter().map(String::as_str).chain([last]).collect();
            pregrant(&args)
        };
        let out = with("--help");
        let help = text(&out.stdout);
        assert!(out.status.success() && out.stderr.is_empty(), "{path:?}");
        assert!(help.contains("Examples:\n  pregrant "), "{path:?} has no examples:\n{help}");
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
    let by_hand = [
        "loopback",
        "loopback serve",
        "loopback attach",
        "loopback detach",
        "back",
        "front",
        "top",
        "hotplug",
    ];
    let others = [
        "",
        "demo",
        "bench",
        "bench net",
        "bench latency",
        "bench limit",
        "bench peers",
        "bench scale",
        "bench fairness",
        "bench store",
        "store",
        "store serve",
        "store ls",
        "store read",
        "store write",
    ];
    for known in by_hand.into_iter().chain(others) {
        assert!(seen.contains(known), "{known:?} is not among {seen:?}");
    }
}

/// What, where, and what to do; before anything is measured.
#[test]
fn a_failure_names_its_remedy() {
    let missing = "/nonexistent/out.jsonl";
    let measuring = ["net", "latency", "limit", "store"].map(|what| ["bench", what]);
    for command in measuring.iter().map(|c| &c[..]).chain([&["demo"][..]]) {
        let out = pregrant(&[command, &["--json", missing]].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{command:?}: {err}");
        assert!(err.contains(missing) && err.contains("make its directory first"), "{command:?}: {err}");
        let out = pregrant(&[command, &["--json", "/"]].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{command:?}: {err}");
        assert!(err.contains("to /: ") && err.contains("choose a file"), "{command:?}: {err}");
    }
    let out = pregrant(&["store", "serve", "--socket", "/nonexistent/xs.sock"]);
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    assert!(err.contains("/nonexistent/xs.sock") && err.contains("make the directory first"), "{err}");
}

#[test]
fn latency_in_every_mode_brings_every_frame_back() {
    let out =
        pregrant(&["bench", "latency", "--mode", "poll,event,adaptive", "--seconds", "0.05", "--json", "-"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
    for mode in ["poll", "event", "adaptive"] {
        let rows: Vec<_> = lines.iter().filter(|l| l["mode"] == mode).collect();
        assert_eq!(rows.len(), 4, "{mode}: two paths, two directions");
        for row in rows {
            assert!(row["lost"] == 0 && row["frames"].as_u64() > Some(0), "{row}");
        }
    }
}

/// A directory for one demo's sockets and files; short, since a socket's path is.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pregrant-cli-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory of its own");
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Processes whose environment makes `place` their directory for temporary files.
fn processes_of(place: &Path) -> Vec<PathBuf> {
    let needle = format!("TMPDIR={}", place.display());
    let procs = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok).map(|e| e.path());
    let is_ours = |p: &PathBuf| {
        let environment = std::fs::read(p.join("environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|v| v == needle.as_bytes())
    };
    procs.filter(is_ours).collect()
}

/// Two demos at the same time, each with domains of the same numbers: neither meets the other, and
/// both leave nothing.
#[test]
fn two_demos_at_the_same_time() {
    let places = ["a", "b"].map(Place::new);
    let demos = places.each_ref().map(|place| {
        Command::new(PREGRANT)
            .args(["demo", "--json"])
            .arg(place.0.join("out.jsonl"))
            .env("TMPDIR", &place.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    });
    for (demo, place) in demos.into_iter().zip(&places) {
        let out = demo.wait_with_output().expect("it ends");
        let (story, err) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{err}");
        assert!(story.contains("at both ends: equal") && story.contains("4 Connected"), "{story}");
        let json = std::fs::read_to_string(place.0.join("out.jsonl")).expect("JSON lines");
        let lines: Vec<serde_json::Value> =
            json.lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect();
        // Frames in a killed backend's memory are lost with it, and counted.
        let lost = |l: &&serde_json::Value| l["bench"] != "restart" && l["lost"] != 0;
        assert!(!lines.is_empty() && !lines.iter().any(|l| lost(&l)), "{json}");
        std::fs::remove_file(place.0.join("out.jsonl")).expect("the file");
        let left: Vec<_> = std::fs::read_dir(&place.0).expect("the place").collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(processes_of(&place.0), Vec::<PathBuf>::new(), "processes are left");
    }
}

/// Options for the loopback alone are refused on Xen before anything is opened, with a line that
/// says why.
#[test]
fn neither_end_maps_a_whole_guest_or_lends_pages_on_xen() {
    for (end, path) in ["back", "front"].into_iter().flat_map(|end| [(end, "foreign"), (end, "guest-copy")]) {
        let out = pregrant(&[end, "--path", path]);
        let said = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.lines().count() == 1 && said.contains("--loopback") && said.contains(path), "{said}");
    }
}

/// Options that cannot have an effect are wrong usage, said before anything is opened: exit code 2,
/// which of them, and why.
#[test]
fn options_without_effect_are_refused() {
    for (line, said) in [
        ("front --data-len 32768", "as 64 or 128 or 256 or 2048 or 4096 or 65535"),
        ("front --data-len 0", "as 64 or 128"),
        ("front --data-len 8", "as 64 or 128"),
        ("front --data-len 100", "as 64 or 128"),
        ("front --path copy --rx-only", "--rx-only has no effect: --path copy has no staging buffers"),
        ("front --rx-only --tx-data-len 64", "cannot be used with"),
        ("front --data-len 64 --rx-data-len 64 --rx-only", "--data-len has no effect: both directions"),
        ("back --staging off --path staging+copy", "--path has no effect: there are no heads without"),
        ("back --staging 256,300", "off, or lengths of 64, 128, 256"),
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
        ("back --port switch --tap-way burst", "--tap-way has no effect: the switch has no taps"),
        ("back --copy-below 256", "--copy-below has no effect: --path copy maps no frames"),
        ("back --path staging+copy --copy-below 256", "--copy-below has no effect: --path staging+copy"),
        ("back --port switch --lend-from 256", "--lend-from has no effect: it is for taps"),
        ("back --lend-between 256", "--lend-between has no effect: taps have no"),
        ("back --loopback /x --lend-from 256", "--lend-from has no effect: it is for taps (--port tap)"),
        ("back --loopback /x --port tap --lend-between 256", "--lend-between has no effect: taps have no"),
        ("loopback attach --dir /x 7 --vif color=red", "bridge, script"),
        ("loopback detach --dir /x 7 --vif 0 --disk xvda", "cannot be used with"),
        ("loopback detach --dir /x 7 --disk sda", "a disk's name, xvda"),
        ("back --path map --copy-below 127", "127 is not in 128..=65535"),
        ("back --lend-from 65536", "65536 is not in 128..=65535"),
        ("front --mode often", "[possible values: adaptive, event, poll]"),
        ("front --rx reference", "--tap"),
        ("front --tap x --rx reference", "--rx has no effect: frames by --path staging come in no pages"),
        ("front --tap x --path copy --rx reference --hook pass", "cannot be used with"),
        ("front --tap x --path gref-mapping --own-buffers 256", "--own-buffers has no effect: on Xen"),
        (
            "front --loopback /x --domain 5 --tap x --own-buffers 256",
            "--own-buffers has no effect: by --path",
        ),
        ("front --own-buffers 256", "--tap"),
        ("front --match all", "--hook"),
        ("front --hook bounce", "pass, drop, tx, or redirect=DOMID.HANDLE"),
        ("front --hook redirect=5", "pass, drop, tx, or redirect=DOMID.HANDLE"),
        ("front --hook redirect=5.0", "names the vif that the hook is on; for that one say --hook tx"),
        ("front --loopback /x --domain 5 --hook redirect=6.1", "a guest sends by its own vifs alone"),
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
        let mut command = Command::new(PREGRANT);
        let ended = command.args(args).stdout(full()).stderr(full()).status().expect("it starts");
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
            said.contains("pregrant loopback serve --dir '/none of it'") && !said.contains("xenstored"),
            "{said}"
        );
    }
}
