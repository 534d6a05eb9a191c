//! Builds the packages named on the command line and prints where their components are.

fn main() {
    let packages: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    match mainstay_guest_build::build(&names) {
        Ok(files) => files.iter().for_each(|file| println!("{}", file.display())),
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
}
