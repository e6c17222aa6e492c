"""What an application uses: `Member`, and letters. It never loads Spark."""
