//! `front --experiment hook=.. --experiment match=..`: the sender sees answers or none, and the
//! last line counts what happened to the frames.

use pregrant_host::drivers::BackStatus;
use pregrant_test_machine::served::{Process, Served, command};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// `tcpdump -y EN10MB -ddd icmp`.
const ICMP: &str = "6\n40 0 0 12\n21 0 3 2048\n48 0 0 23\n21 0 1 1\n6 0 0 262144\n6 0 0 0\n";
const UDP: &str = "6\n40 0 0 12\n21 0 3 2048\n48 0 0 23\n21 0 1 17\n6 0 0 262144\n6 0 0 0\n";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The back's status, once `wanted` accepts it.
fn status_when(dir: &Path, wanted: impl Fn(&BackStatus) -> bool) -> BackStatus {
    loop {
        let mut document = Vec::new();
        let read =
            UnixStream::connect(dir.join("back-0.status")).and_then(|mut s| s.read_to_end(&mut document));
        let status = read.ok().and_then(|_| serde_json::from_slice(&document).ok());
        if let Some(status) = status.filter(&wanted) {
            return status;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The program in binary form, as `struct sock_filter`.
fn binary(program: &str) -> Vec<u8> {
    let lines = program.lines().skip(1);
    let instruction = |line: &str| {
        let n: Vec<u32> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        [&(n[0] as u16).to_ne_bytes()[..], &[n[1] as u8, n[2] as u8], &n[3].to_ne_bytes()].concat()
    };
    lines.flat_map(instruction).collect()
}

#[test]
fn a_hook_does_as_it_says_with_the_frames_that_match() {
    let machine = Served::start("hook", &["--guest", "5", "--guest", "6"]);
    let attach =
        command(&["loopback", "attach", "6", "--dir"]).arg(&machine.dir).output().expect("it starts");
    assert!(attach.status.success(), "{}", text(&attach.stderr));
    let mut back = Process::start(&mut machine.command(&["back"]));
    assert!(back.line().contains("ready"));
    let files = machine.dir.with_extension("files");
    std::fs::create_dir(&files).expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = files.join(name);
        std::fs::write(&path, bytes).expect("the file");
        path.to_str().expect("text").to_string()
    };
    let (icmp, udp) = (file("icmp", ICMP.as_bytes()), file("udp", UDP.as_bytes()));
    let raw = file("icmp.raw", &binary(ICMP));
    let tx = " 5 sent on in their buffers, 0 by a copy, 0 without room";
    for (args, answers, counted) in [
        (&["hook=tx"][..], 5, &[tx][..]),
        (&["hook=drop"], 0, &[" 5 dropped, 0 sent on"]),
        (&["hook=pass"], 5, &[" 0 dropped, 0 sent on in their buffers, 0 by a copy"]),
        (&["hook=tx", "--experiment", "match=icmp-echo"], 5, &[tx]),
        (&["hook=tx", "--experiment", &format!("match={icmp}")], 5, &[tx]),
        (&["hook=drop", "--experiment", &format!("match={raw}")], 0, &[" 5 dropped, 0 sent on"]),
        (&["hook=drop", "--experiment", &format!("match={udp}")], 5, &[" 0 dropped, 0 sent on"]),
        // A station that asks for the address gets its own question back, or nothing.
        (
            &["hook=tx", "--experiment", "match=all"],
            0,
            &[" 0 passed, 0 dropped, ", " 0 by a copy, 0 without room"],
        ),
        (&["hook=drop", "--experiment", "match=all"], 0, &[" 0 passed, ", " 0 sent on in their buffers"]),
        (&["hook=redirect=6.1"], 5, &["; 5 redirected to vif 1 of domain 6", ", 0 without room there"]),
        (
            &["hook=redirect=6.1", "--experiment", &format!("match={icmp}"), "--path", "copy"],
            5,
            &["; 5 redirected to vif 1"],
        ),
    ] {
        let what = args.join(" ");
        let mut six = Process::start(
            &mut machine.command(&[&["front", "--domain", "6", "--experiment"], args].concat()),
        );
        assert!(six.line().contains("address 10.0.0."), "{what}");
        let fronts = if what.starts_with("hook=redirect") { 2 } else { 1 };
        let live = |status: &BackStatus| {
            status.vifs.iter().filter(|vif| vif.front == 6 && !vif.queues.is_empty()).count() == fronts
        };
        status_when(&machine.dir, live);
        let five = ["front", "--domain", "5", "--ping", "10.0.0.6", "--count", "5", "--interval", "0.01"];
        let asked = text(&machine.command(&five).output().expect("it starts").stdout);
        let lost = 5 - answers;
        assert!(
            asked.contains(&format!("5 request(s), {answers} answer(s), {lost} lost")),
            "{what}: {asked}"
        );
        let said = six.stop();
        assert!(said.contains("hook: ") && counted.iter().all(|part| said.contains(part)), "{what}: {said}");
    }
    // A program that is none, and a vif that is not there.
    let loops = file("loops", b"2\n5 0 0 4294967294\n6 0 0 0\n");
    let long = file("long", format!("5000\n{}", "6 0 0 0\n".repeat(5000)).as_bytes());
    let beyond = file("beyond", b"2\n48 0 0 300\n6 0 0 0\n");
    for (args, why) in [
        (
            &["hook=drop", "--experiment", &format!("match={loops}")][..],
            "instruction 0: it jumps to instruction 4294967295",
        ),
        (
            &["hook=drop", "--experiment", &format!("match={long}")],
            "it has 5000 instructions, and can have 1 to 4096",
        ),
        (
            &["hook=drop", "--experiment", &format!("match={beyond}")],
            "instruction 0: it reads byte 300, and a hook sees the first 256",
        ),
        (&["hook=drop", "--experiment", "match=/nowhere"], "No such file"),
        (&["hook=redirect=6.7"], "has no vif 7, it has vif 0, 1"),
    ] {
        let out = machine
            .command(&[&["front", "--domain", "6", "--experiment"], args].concat())
            .output()
            .expect("it starts");
        let err = text(&out.stderr);
        assert!(out.status.code() == Some(1) && err.contains(why), "{args:?}: {err}");
        let remedy = if args.len() > 1 { "tcpdump -y EN10MB -ddd" } else { "pregrant-lab loopback attach" };
        assert!(err.contains(remedy), "{err}");
    }
    back.stop();
    machine.end();
    std::fs::remove_dir_all(files).expect("it is there");
}
