//! Plays inputs once, on any toolchain: `cargo run --manifest-path fuzz/Cargo.toml --bin replay --
//! TARGET FILE...`

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let Some(target) = pregrant_fuzz::target(&name) else {
        let names: Vec<_> = pregrant_fuzz::TARGETS.iter().map(|t| t.name).collect();
        eprintln!(
            "replay: no target {name:?}; usage: replay TARGET FILE..., TARGET one of {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    for file in args {
        match std::fs::read(&file) {
            Ok(input) => (target.play)(&input),
            Err(e) => {
                eprintln!("replay: {file}: {e}");
                return ExitCode::FAILURE;
            }
        }
        println!("{file}: nothing found");
    }
    ExitCode::SUCCESS
}
